"""The gateway and the reference agent as processes: TLS, addresses, signals, and a gateway that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from hatchway import agent
from hatchway.dev.ports import free_port
from hatchway.errors import ConfigError, SchemaOutdated
from hatchway.gateway.server import serve
from hatchway.gateway.settings import GatewaySettings
from tests.support.door import OpenDoor, spawned
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.postgres_fixtures import PostgresServer

Run = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Starts processes of this Python; whatever still runs after the test is ended."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
        started.append(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                env={"PATH": os.environ["PATH"], **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, output.decode()


@pytest.mark.parametrize("trusts", [True, False])
async def test_the_agent_speaks_tls_and_only_to_a_gateway_that_it_trusts(
    lab: Lab, open_door: OpenDoor, run: Run, certificate: tuple[Path, Path], trusts: bool
) -> None:
    cert, key = certificate
    door = await open_door(tls_cert=cert, tls_key=key)
    made = await spawned(lab)
    environment = {
        "KICI_ORCHESTRATOR_URL": door.url.replace("127.0.0.1", "localhost"),
        "KICI_SCALER_CLAIM_CODE": made.code,
        "HATCHWAY_STRANDED_SECONDS": "30" if trusts else "1",
    }
    if trusts:
        environment["SSL_CERT_FILE"] = str(cert)

    code, output = await ended(await run(agent.__file__, "--", "/bin/sh", "-c", "exit 0", **environment))

    assert door.url.startswith("https://")
    if trusts:
        assert code == 0, output
        assert (await lab.outcome(made.started)).result == "succeeded"
    else:
        assert (code, "certificate verify failed" in output) == (75, True)
        await lab.release(made.started, now=True)


async def test_a_gateway_that_is_killed_under_a_job_is_replaced_by_another(
    lab: Lab, open_door: OpenDoor, run: Run, module_database_url: str, tmp_path: Path
) -> None:
    port, go = free_port("127.0.0.1"), tmp_path / "go"
    host, namespace = lab.temporal.service_client.config.target_host, lab.temporal.namespace
    doomed = await run(
        "-m", "hatchway.cli", "gateway", "--bind", f"127.0.0.1:{port}", "--metrics-bind", "none",
        DATABASE_URL=module_database_url, TEMPORAL_ADDRESS=host, TEMPORAL_NAMESPACE=namespace,
        HATCHWAY_GATEWAY_HEARTBEAT_INTERVAL="0.1",
    )  # fmt: skip
    await until(lambda: _answers(port), what="the gateway")
    survivor = await open_door(heartbeat_interval=0.1, instance_id="survivor")
    made = await spawned(lab)
    working = await run(
        agent.__file__, "--", "/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done",
        KICI_ORCHESTRATOR_URL=f"http://127.0.0.1:{port},{survivor.url}", KICI_SCALER_CLAIM_CODE=made.code,
    )  # fmt: skip
    await until(lambda: _heard_by(lab, made.id, other_than="survivor"), what="a heartbeat at the first gateway")

    doomed.send_signal(signal.SIGKILL)
    await until(lambda: _heard_by(lab, made.id, only="survivor"), what="a heartbeat at the second gateway")
    go.touch()

    code, output = await ended(working)
    assert code == 0, output
    assert (await lab.outcome(made.started)).result == "succeeded"


async def test_sigterm_ends_a_gateway_within_seconds_and_with_0(lab: Lab, run: Run, module_database_url: str) -> None:
    port = free_port("127.0.0.1")
    process = await run(
        "-m", "hatchway.cli", "gateway", "--bind", f"127.0.0.1:{port}", "--metrics-bind", "none",
        DATABASE_URL=module_database_url, TEMPORAL_ADDRESS=lab.temporal.service_client.config.target_host,
        TEMPORAL_NAMESPACE=lab.temporal.namespace,
    )  # fmt: skip
    await until(lambda: _answers(port), what="the gateway")

    process.send_signal(signal.SIGTERM)
    code, output = await ended(process)

    assert code == 0, output
    assert "gateway_started" in output
    assert "gateway_stopped" in output


async def test_a_taken_address_is_said_in_one_sentence(lab: Lab, module_database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(ConfigError, match=f"cannot listen on {address}: .*is another one running"):
            await serve(GatewaySettings(bind=address), module_database_url, lab.temporal)


async def test_a_public_address_without_tls_is_refused_before_anything_listens(
    lab: Lab, module_database_url: str
) -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        await serve(GatewaySettings(bind="0.0.0.0:0"), module_database_url, lab.temporal)


async def test_a_database_without_the_schema_is_refused_with_the_command_to_run(
    lab: Lab, postgres: PostgresServer
) -> None:
    empty = postgres.empty_database()

    with pytest.raises(SchemaOutdated, match="hatchway db migrate"):
        await serve(GatewaySettings(bind="127.0.0.1:0"), empty, lab.temporal)
    postgres.drop(empty)


async def _answers(port: int) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False


async def _heard_by(lab: Lab, agent_id: str, only: str | None = None, other_than: str | None = None) -> bool:
    heard = (
        "select instance_id from scaler_agent_presence where agent_id = %s and last_seen_at > now() - interval '5 s'"
    )
    instance = await lab.db.fetch_value(heard, [agent_id])
    return instance is not None and (instance == only if only else instance != other_than)
