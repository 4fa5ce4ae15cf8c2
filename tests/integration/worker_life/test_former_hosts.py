"""A host that the configuration does not lead to any more is served while agents stand there, by new workers too."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

import worker
from hatchway.client import Started
from hatchway.former_scalers import FormerScalers
from hatchway.model import EndReason, ProvisionState
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import tie_namespace
from hatchway.task_queues import host_queue, spawn_queue
from tests.integration.reclaim.rig import reclaim
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import until
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import Stack
from tests.support.worker_process import WorkerProcess, running_worker

S = ProvisionState
HOST = host_queue("this-host")
MOVED_ON: dict[str, Any] = {
    "version": 1,
    "scalers": [
        {
            "name": "docker", "type": "container", "maxAgents": 1, "host": "unix:///nonexistent/engine.sock",
            "networkIsolation": False, "labelSets": [{"labels": ["other"], "image": "busybox"}],
        }
    ],
}  # fmt: skip
"""No scaler of this machine's processes, and none that can be reached."""


async def _polls(process: WorkerProcess, queue: str) -> None:
    await until(lambda: queue in _polled(process), what=f"a worker on {queue}; it said: {process.said()[-800:]}")


def _polled(process: WorkerProcess) -> list[str]:
    return [entry["task_queue"] for entry in process.entries() if entry["event"] == "polling"]


def _left(process: WorkerProcess) -> list[str]:
    return [entry["task_queue"] for entry in process.entries() if entry["event"] == "task queue left"]


async def _an_agent_whose_scaler_has_left(stack: Stack) -> tuple[Started, int]:
    """It is active, and the worker that spawned it has ended. With the process that the agent is."""
    async with running_worker(stack) as first:
        await _polls(first, spawn_queue("laptop"))
        started = await stack.provision(labels=["long"], job_id="job-1")
        await stack.reaches(started, S.ACTIVE)
        compute = await stack.compute(started)
        await stack.apply(MOVED_ON)
        await until(lambda: [e for e in first.entries() if e["event"] == "task queue left"])
        assert await first.stop() == 0
    return started, int(compute.ref)


async def test_a_worker_that_starts_later_tears_down_where_no_scaler_leads_any_more(stack: Stack) -> None:
    started, pid = await _an_agent_whose_scaler_has_left(stack)
    async with running_worker(stack) as later:
        await _polls(later, HOST)

        await stack.hatchway.cancel(started.workflow_id, "by test")

        await stack.nothing_left()
        polled = _polled(later)

    assert not _lives(pid)
    assert spawn_queue("laptop") not in polled


async def test_a_worker_that_starts_later_sees_an_exit_where_no_scaler_leads_any_more(stack: Stack) -> None:
    """It happened while no worker was there: what ended is read from the host's own record."""
    started, pid = await _an_agent_whose_scaler_has_left(stack)
    os.kill(pid, signal.SIGKILL)

    async with running_worker(stack):
        await stack.nothing_left()
        ended = await stack.outcomes.get(started.agent_id)

    assert ended is not None
    assert ended.end_reason == EndReason.COMPUTE_EXITED


async def test_reclaim_passes_run_where_no_scaler_leads_any_more(stack: Stack) -> None:
    await tie_namespace(stack.db, await namespace_uuid(stack.temporal))
    started, _ = await _an_agent_whose_scaler_has_left(stack)

    async with running_worker(stack) as later:
        await _polls(later, HOST)
        passed = await reclaim(stack.temporal, "this-host")
        await stack.hatchway.cancel(started.workflow_id, "by test")
        await stack.nothing_left()

    assert (passed.seen, passed.reclaimed) == (1, [])


async def test_an_agent_that_is_still_to_be_made_when_its_scaler_leaves_is_made(stack: Stack) -> None:
    """Its slot was reserved; the worker that would have made it ended before it came to that."""
    lab = await Lab.on(stack.temporal, stack.db, ScriptedBackend(Cloud()))
    async with control_worker(lab):
        started = await stack.provision(labels=["long"], job_id="job-1")
        await stack.reaches(started, S.SPAWNING)
        await stack.apply(MOVED_ON)
        async with running_worker(stack) as later:
            await stack.reaches(started, S.ACTIVE)
            polled = _polled(later)
            await until(lambda: spawn_queue("laptop") in _left(later), what="its queue left once nobody needs it")
            await stack.hatchway.cancel(started.workflow_id, "by test")
            await stack.nothing_left()

    assert spawn_queue("laptop") in polled


async def test_without_a_look_at_the_rows_nobody_would_serve_that_host(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others are worth: a worker that knows only the configuration leaves the host alone."""
    started, _ = await _an_agent_whose_scaler_has_left(stack)
    look = FormerScalers.as_of

    async def blind(self: FormerScalers, version: int) -> list[Any]:
        return []

    monkeypatch.setattr(FormerScalers, "as_of", blind)
    stop = asyncio.Event()
    settings = worker.WorkerSettings(
        database_url=stack.database_url, state_dir=stack.state_dir, gateway_url=stack.gateway_url, host_id="this-host"
    )
    running = asyncio.create_task(worker.run(settings, stop, stack.temporal))
    await stack.hatchway.cancel(started.workflow_id, "by test")
    tearing = await stack.reaches(started, S.TEARING_DOWN)
    held = await stack.slots.list()

    monkeypatch.setattr(FormerScalers, "as_of", look)
    await stack.nothing_left()
    stop.set()
    await running

    assert [row.agent_id for row in held] == [started.agent_id]
    assert tearing.agent_id == started.agent_id


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
