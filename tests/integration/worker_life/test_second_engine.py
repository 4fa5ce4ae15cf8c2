"""A configuration that brings a second engine to workers that were given their host id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

import worker
from hatchway.backends.base import Backend
from hatchway.config.schema import Scaler, ScalerType
from hatchway.model import ComputeExit, EndReason
from tests.support.namespaces import Namespaces, until
from tests.support.stack import label_set, laptop, running_stack


class Engine:
    """An engine by its address, under the host id that was given. Two addresses may lead to one."""

    IDS = {"tcp://192.0.2.1:1": "engine-1", "tcp://192.0.2.2:1": "engine-1", "tcp://192.0.2.3:1": "engine-2"}

    host_id = "rack-1"

    def __init__(self, address: str) -> None:
        self._address = address

    async def engine_id(self) -> str:
        return self.IDS[self._address]

    async def exits(self) -> AsyncIterator[ComputeExit]:
        await asyncio.Event().wait()
        yield ComputeExit(agent_id="never", log_tail="")

    async def close(self) -> None:
        return


def _scaler(number: int) -> dict[str, Any]:
    return {
        "name": f"box-{number}", "type": "container", "maxAgents": 1, "networkIsolation": False,
        "host": f"tcp://192.0.2.{number}:1", "labelSets": [{"labels": [f"box-{number}"], "image": "x"}],
    }  # fmt: skip


async def test_a_second_engine_costs_a_worker_that_scaler_and_nothing_else(
    namespaces: Namespaces, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = worker.Fleet._make_backend

    async def made(fleet: worker.Fleet, scaler: Scaler) -> Backend:
        if scaler.type is ScalerType.CONTAINER:
            return cast("Backend", Engine(str(scaler.host)))
        return await make(fleet, scaler)

    monkeypatch.setattr(worker.Fleet, "_make_backend", made)
    plain = laptop(labelSets=[label_set("linux", "true")])
    config = {**plain, "scalers": [*plain["scalers"], _scaler(1)]}
    with capture_logs() as logged:
        async with running_stack(namespaces, database_url, config, host_id="rack-1") as stack:

            def polled() -> set[str]:
                return {str(entry["task_queue"]) for entry in logged if entry["event"] == "polling"}

            await until(lambda: "hatchway.spawn.box-1" in polled())

            await stack.apply({**plain, "scalers": [*plain["scalers"], *map(_scaler, (1, 2, 3))]})
            await until(lambda: [entry for entry in logged if entry["event"] == "a backend is not served here"])
            await until(lambda: "hatchway.spawn.box-2" in polled())
            started = await stack.provision(job_id="job-1")

            assert (await stack.hatchway.outcome(started)).end_reason is EndReason.COMPLETED
            await stack.nothing_left()

    said = [entry for entry in logged if entry["event"] == "a backend is not served here"]
    assert [entry["backend"] for entry in said] == ["container tcp://192.0.2.3:1"]
    assert "hatchway.spawn.box-3" not in polled()
