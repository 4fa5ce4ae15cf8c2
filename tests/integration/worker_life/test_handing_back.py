"""What a worker that is told to stop does with the activities that it runs."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import Worker

from hatchway import handing_back
from hatchway.client import Started
from hatchway.handing_back import HandingBack, shut_down
from hatchway.model import ProvisionState
from hatchway.task_queues import spawn_queue
from tests.support.lab import SCALER, Lab
from tests.support.namespaces import PATIENCE, until
from tests.support.scripted import Gate
from tests.support.stack import Stack
from tests.support.worker_process import WorkerProcess, running_worker
from workflows.steps import SPAWN_ATTEMPTS

S = ProvisionState
NO_TIME = timedelta(0)


class Spawner:
    """A worker of the scaler's spawn queue, which can be told to stop."""

    def __init__(self, lab: Lab) -> None:
        self.back = HandingBack()
        self.at_once = asyncio.Event()
        self.worker = Worker(
            lab.temporal,
            task_queue=spawn_queue(SCALER),
            activities=[lab.compute(lab.backend).spawn],
            graceful_shutdown_timeout=timedelta(minutes=1),
            interceptors=[self.back],
        )
        self._running = asyncio.create_task(self.worker.run())

    async def stop(self, graceful: timedelta) -> bool:
        left = await shut_down([self.worker], [], self.back, graceful, self.at_once)
        if left:
            await self._running
        return left


@pytest.fixture
async def alone(lab: Lab) -> Lab:
    """The lab, with nobody on the spawn queue yet."""
    await lab.stop_host(lab.backend.host_id)
    return lab


async def test_a_spawn_that_finishes_in_time_is_not_handed_back(alone: Lab) -> None:
    gate = alone.backend.before_create = Gate()
    worker = Spawner(alone)
    started = await alone.provision()
    await asyncio.wait_for(gate.reached.wait(), PATIENCE)

    stopping = asyncio.create_task(worker.stop(timedelta(seconds=30)))
    await asyncio.sleep(0)
    gate.open()

    assert await asyncio.wait_for(stopping, 20)
    await alone.reaches(started, S.AWAITING_ADOPTION)
    assert not worker.back.over
    await _ended(alone, started.workflow_id)


async def test_handed_back_attempts_do_not_count_and_make_one_compute(alone: Lab) -> None:
    """More restarts than a spawn has attempts, each in the middle of it: the next worker takes it up at once."""
    first, waited = None, []
    for _ in range(SPAWN_ATTEMPTS + 1):
        gate = alone.backend.before_create = Gate()
        worker = Spawner(alone)
        first = first or await alone.provision()
        begun = time.monotonic()
        await asyncio.wait_for(gate.reached.wait(), PATIENCE)
        waited.append(time.monotonic() - begun)
        assert await worker.stop(NO_TIME)
    assert first is not None
    alone.backend.before_create = Gate()
    alone.backend.before_create.open()
    last = Spawner(alone)

    await alone.reaches(first, S.AWAITING_ADOPTION)

    assert max(waited) < 10, "it waited for a time-out instead of being handed back"
    assert alone.cloud.created(first.agent_id) == 1
    await _ended(alone, first.workflow_id)
    await last.stop(NO_TIME)


async def test_a_cancel_on_its_way_is_not_lost_when_the_spawn_is_handed_back(alone: Lab) -> None:
    gate = alone.backend.before_create = Gate()
    worker = Spawner(alone)
    started = await alone.provision()
    await asyncio.wait_for(gate.reached.wait(), PATIENCE)

    await alone.hatchway.cancel(started.workflow_id, "by test")
    assert await worker.stop(NO_TIME)
    await until(lambda: not worker.back.running)
    alone.start_host(alone.backend)  # the host was stamped: its queue confirms that nothing is there

    with pytest.raises(Exception, match=r"(?i)cancel"):
        await alone.outcome(started)
    assert alone.cloud.created(started.agent_id) == 0
    await alone.nothing_left()


async def test_a_second_signal_does_not_wait_for_the_graceful_time(alone: Lab) -> None:
    gate = alone.backend.before_create = Gate()
    worker = Spawner(alone)
    started = await alone.provision()
    await asyncio.wait_for(gate.reached.wait(), PATIENCE)
    stopping = asyncio.create_task(worker.stop(timedelta(minutes=10)))

    worker.at_once.set()

    assert await asyncio.wait_for(stopping, 20)
    gate.open()
    next_worker = Spawner(alone)
    await alone.reaches(started, S.AWAITING_ADOPTION)
    await _ended(alone, started.workflow_id)
    await next_worker.stop(NO_TIME)


async def test_an_activity_that_does_not_let_go_is_left_behind(alone: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_back, "LETTING_GO", timedelta(milliseconds=300))
    stuck, may_end = asyncio.Event(), asyncio.Event()

    async def hang(_agent_id: str) -> None:
        stuck.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    alone.backend.before_create = hang
    worker = Spawner(alone)
    started = await alone.provision()
    await asyncio.wait_for(stuck.wait(), PATIENCE)

    assert not await worker.stop(NO_TIME)

    may_end.set()
    await until(lambda: not worker.back.running)
    await _ended(alone, started.workflow_id)


async def _ended(lab: Lab, workflow_id: str) -> None:
    """Cancel it, with a host that confirms; nothing is left."""
    lab.start_host(lab.backend, spawns=False)
    await lab.hatchway.cancel(workflow_id, "the test is over")
    await lab.nothing_left()


async def test_a_process_that_gets_a_second_sigterm_leaves_at_once_and_its_teardown_is_done_by_the_next(
    stack: Stack,
    ready: Callable[[WorkerProcess], Awaitable[dict[str, Any]]],
    stubborn: Callable[[], Awaitable[Started]],
    tearing_down: Callable[[Started], Awaitable[None]],
    may_stop: Path,
) -> None:
    """The agent does not heed its SIGTERM yet, so its teardown is under way when the worker is told."""
    async with running_worker(stack, "--graceful", "600") as first:
        await ready(first)
        started = await stubborn()
        await stack.hatchway.cancel(started.workflow_id, "by test")

        await tearing_down(started)
        first.signal(signal.SIGTERM)
        await until(lambda: "running activities may finish" in first.said())
        begun = time.monotonic()
        first.signal(signal.SIGTERM)
        code = await first.ended()
        took = time.monotonic() - begun

    may_stop.touch()
    async with running_worker(stack) as second:
        await ready(second)
        with pytest.raises(Exception, match=r"(?i)cancel"):
            await asyncio.wait_for(stack.hatchway.outcome(started), 60)
        await stack.nothing_left()

    assert code == 0
    assert took < 15
    (handed_back,) = [entry for entry in first.entries() if entry["event"] == "handed back"]
    assert (handed_back["activity"], handed_back["workflow_id"]) == ("teardown", started.workflow_id)
