"""A worker whose container engine goes away while it runs: what `hatchway worker --health` says meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.support.namespaces import Namespaces, until
from tests.support.proxy import FaultProxy
from tests.support.stack import laptop, running_stack
from tests.support.worker_process import WorkerProcess, running_worker

Said = tuple[int, dict[str, Any]]


def _scaler(engine: FaultProxy) -> dict[str, Any]:
    return {
        "name": "docker", "type": "container", "maxAgents": 1, "host": f"tcp://{engine.address}",
        "networkIsolation": False, "labelSets": [{"labels": ["box"], "image": "busybox"}],
    }  # fmt: skip


async def _ask(process: WorkerProcess, path: str = "/readyz") -> Said | None:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        try:
            answer = await http.get(process.health_url + path)
        except httpx.TransportError:
            return None
    return answer.status_code, answer.json()


@pytest.mark.parametrize("how", ["cut", "hang"])
async def test_one_engine_that_goes_away_is_named_and_the_worker_stays_ready(
    namespaces: Namespaces, database_url: str, engine_proxy: FaultProxy, how: str
) -> None:
    """It serves its other scaler; and its health is answered at once, whatever the engine does."""
    config = laptop()
    config["scalers"].append(_scaler(engine_proxy))
    async with (
        running_stack(namespaces, database_url, config, with_worker=False) as stack,
        running_worker(stack) as process,
    ):

        async def says(unreached: list[str] | None) -> Said | None:
            said = await _ask(process)
            return said if said and said[0] == 200 and said[1].get("unreached") == unreached else None

        await until(lambda: says(None), what=f"a ready worker; it said: {process.said()[-800:]}")

        getattr(engine_proxy, how)()

        await until(lambda: says(["docker"]), what="the engine named")
        asked = time.monotonic()
        alive = await _ask(process, "/healthz")
        took = time.monotonic() - asked
        engine_proxy.heal()
        await until(lambda: says(None), what="the engine back")

    assert alive == (200, {"status": "up"})
    assert took < 2


async def test_a_worker_whose_only_engine_goes_away_is_alive_and_not_ready(
    namespaces: Namespaces, database_url: str, engine_proxy: FaultProxy
) -> None:
    config = {"version": 1, "scalers": [_scaler(engine_proxy)]}
    async with (
        running_stack(namespaces, database_url, config, with_worker=False) as stack,
        running_worker(stack) as process,
    ):

        async def answers(status: int) -> Said | None:
            said = await _ask(process)
            return said if said and said[0] == status else None

        await until(lambda: answers(200), what=f"a ready worker; it said: {process.said()[-800:]}")

        engine_proxy.cut()

        _, refused = await until(lambda: answers(503), what="503")
        alive = await _ask(process, "/healthz")
        await asyncio.to_thread(engine_proxy.heal)
        await until(lambda: answers(200), what="the engine back")

    assert "none of its backends" in refused["message"]
    assert "docker" in refused["message"]
    assert alive == (200, {"status": "up"})
