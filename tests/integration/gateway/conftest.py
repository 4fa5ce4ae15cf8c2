"""Real gateways before the real workflows, Temporal and Postgres."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from hatchway.gateway.server import serve
from hatchway.gateway.settings import GatewaySettings
from hatchway.namespace import namespace_uuid
from hatchway.store.backoff import Backoff, Failures
from hatchway.store.installation import tie_namespace
from tests.support.door import Door, OpenDoor
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import PATIENCE, Namespaces
from tests.support.stack import laptop


@pytest.fixture(scope="module")
async def lab(namespaces: Namespaces, module_database_url: str) -> AsyncIterator[Lab]:
    """The provision workflows, with a scripted backend, shared by the tests of one file.

    An agent that never registers, which some of them leave behind, has its scaler back off; no sweep runs here that
    would hand the slots over afterwards. So it counts for nothing.
    """
    with pytest.MonkeyPatch.context() as forgiving:
        forgiving.setattr(Backoff, "failed", _forgiven)
        config = laptop(maxAgents=200, maxConcurrentSpawns=20)
        async with running_lab(namespaces, module_database_url, config) as running:
            yield running


async def _forgiven(*_: object, **__: object) -> Failures:
    return Failures(0, None, None, None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for `localhost`, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
async def open_door(module_database_url: str, lab: Lab) -> AsyncIterator[OpenDoor]:
    """Starts gateways; each is another instance unless it is given an `instance_id`. All are stopped after the test.

    The database is tied to its namespace, as by `hatchway setup`: only then do they tell an unknown agent to stop.
    """
    await tie_namespace(lab.db, await namespace_uuid(lab.temporal))
    doors: list[Door] = []

    async def open_one(dsn: str | None = None, temporal: Client | None = None, **settings: Any) -> Door:
        settings.setdefault("instance_id", f"gateway-{secrets.token_hex(4)}")
        settings.setdefault("answer_timeout", PATIENCE / 2)  # the 503 of a slow moment is for test_outages.py
        stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
        chosen = GatewaySettings(bind="127.0.0.1:0", metrics_bind=None, **settings)
        task = asyncio.create_task(
            serve(chosen, dsn or module_database_url, temporal or lab.temporal, stop=stop, started=url.set_result)
        )
        await asyncio.wait([task, url], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        http = httpx.AsyncClient(timeout=PATIENCE, trust_env=False)

        async def end() -> None:
            stop.set()
            await task
            await http.aclose()

        doors.append(Door(str(await url), http, end))
        return doors[-1]

    yield open_one
    for door in doors:
        await door.stop()


@pytest.fixture
async def door(open_door: OpenDoor) -> Door:
    """One gateway. No test is slowed down by the refusals of another: the limit on them is high."""
    return await open_door(refused_redeems_per_minute=10_000)
