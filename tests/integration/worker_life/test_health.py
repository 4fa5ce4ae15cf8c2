"""`hatchway worker --health`: what a supervisor hears of a worker."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hatchway.client import Started
from tests.support.namespaces import until
from tests.support.proxy import FaultProxy
from tests.support.stack import Stack, label_set, laptop
from tests.support.worker_process import ROOT, WorkerProcess, running_worker

Asked = Callable[..., Awaitable[tuple[int, dict[str, Any]] | None]]
Ready = Callable[[WorkerProcess], Awaitable[dict[str, Any]]]


@pytest.fixture
def way_to_temporal(stack: Stack) -> Iterator[FaultProxy]:
    host, _, port = stack.temporal.service_client.config.target_host.rpartition(":")
    with FaultProxy((host, int(port))) as proxy:
        yield proxy


@pytest.fixture
def way_to_postgres(stack: Stack) -> Iterator[FaultProxy]:
    target = conninfo_to_dict(stack.database_url)
    with FaultProxy((str(target["host"]), int(str(target["port"])))) as proxy:
        yield proxy


async def test_a_ready_worker_names_its_configuration_and_its_queues(stack: Stack, ready: Ready, asked: Asked) -> None:
    async with running_worker(stack) as worker:
        said = await ready(worker)
        await stack.apply({**laptop(), "scalers": [*laptop()["scalers"], {**laptop()["scalers"][0], "name": "second",
                           "labelSets": [label_set("other")]}]})  # fmt: skip

        async def polls_the_new_one() -> bool:
            answer = await asked(worker)
            return answer is not None and "hatchway.spawn.second" in answer[1].get("polling", [])

        await until(polls_the_new_one)
        alive, unknown = await asked(worker, "/healthz"), await asked(worker, "/other")

    assert said == {
        "status": "ready", "postgres": "answered", "temporal": "answered", "config_version": 1,
        "polling": ["hatchway", "hatchway.host.this-host", "hatchway.spawn.laptop"],
    }  # fmt: skip
    assert alive == (200, {"status": "up"})
    assert unknown is not None
    assert unknown[0] == 404


@pytest.mark.parametrize("how", ["cut", "hang"])
@pytest.mark.parametrize("server", ["Postgres", "Temporal"])
async def test_a_worker_without_a_server_is_alive_but_not_ready_and_comes_back(
    stack: Stack, way_to_temporal: FaultProxy, way_to_postgres: FaultProxy, ready: Ready, asked: Asked,
    server: str, how: str,
) -> None:  # fmt: skip
    environ = {
        "TEMPORAL_ADDRESS": way_to_temporal.address,
        "DATABASE_URL": make_conninfo(stack.database_url, port=way_to_postgres.port),
    }
    way = {"Postgres": way_to_postgres, "Temporal": way_to_temporal}[server]
    async with running_worker(stack, "--graceful", "0", environ=environ) as worker:
        await ready(worker)

        getattr(way, how)()

        refused = await until(lambda: _status(asked(worker), 503), what="503")
        alive = await asked(worker, "/healthz")
        way.heal()
        await ready(worker)

    assert refused["error"] == "not_ready"
    assert f"{server} did not answer in time" in refused["message"]
    assert alive == (200, {"status": "up"})


async def _status(asking: Awaitable[tuple[int, dict[str, Any]] | None], wanted: int) -> dict[str, Any] | None:
    answer = await asking
    return answer[1] if answer and answer[0] == wanted else None


async def test_a_worker_that_finishes_its_work_is_not_ready_any_more(
    *,
    stack: Stack,
    ready: Ready,
    asked: Asked,
    stubborn: Callable[[], Awaitable[Started]],
    tearing_down: Callable[[Started], Awaitable[None]],
    may_stop: Path,
) -> None:
    """So that a rolling restart does not count it, while the teardown that it has begun goes on."""
    async with running_worker(stack, "--graceful", "60") as worker:
        await ready(worker)
        started = await stubborn()
        await stack.hatchway.cancel(started.workflow_id, "by test")
        await tearing_down(started)

        worker.signal(signal.SIGTERM)

        refused = await until(lambda: _status(asked(worker), 503), what="503")
        may_stop.touch()
        code = await worker.ended()

    assert "told to stop" in refused["message"]
    assert code == 0
    assert not [entry for entry in worker.entries() if entry["event"].startswith("handed back")]
    async with running_worker(stack):
        await stack.nothing_left()


@pytest.mark.parametrize("address", ["8790", "here:", ":8790", "127.0.0.1:99999"])
async def test_a_health_address_that_is_none_is_refused_in_a_sentence(stack: Stack, address: str) -> None:
    worker = WorkerProcess(stack, "--health", address)

    await worker.start()

    assert await worker.ended() == 2
    assert f"and not '{address}'" in worker.said()


def test_a_deployment_without_a_build_id_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "worker.py", "--deployment", "hatchway"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "--deployment and --build-id go together" in done.stderr


async def test_a_health_port_that_is_taken_is_said(stack: Stack, ready: Ready) -> None:
    async with running_worker(stack) as first:
        await ready(first)
        second = WorkerProcess(stack, "--health", f"127.0.0.1:{first.health_port}")
        await second.start()

        code = await asyncio.wait_for(second.ended(), 60)

    assert code == 2
    assert f"the health port cannot listen on 127.0.0.1:{first.health_port}" in second.said()
