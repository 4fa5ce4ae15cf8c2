"""A worker's queues follow the configuration while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hatchway.model import EndReason
from tests.support.namespaces import until
from tests.support.stack import Stack, label_set, laptop
from tests.support.worker_process import WorkerProcess, running_worker


async def test_another_number_of_spawns_is_taken_on_without_a_restart(
    stack: Stack, ready: Callable[[WorkerProcess], Awaitable[dict[str, Any]]]
) -> None:
    async with running_worker(stack) as worker:
        await ready(worker)
        for spawns in (3, 2, 3):  # also back and forth, while the Worker before is still leaving
            await stack.apply(laptop(maxConcurrentSpawns=spawns, labelSets=[label_set("quick", "/bin/true")]))
        await until(lambda: [e["task_queue"] for e in worker.entries() if e["event"] == "task queue left"])

        started = await stack.provision(labels=["quick"], job_id="job-1")
        outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)
        await stack.nothing_left()
        code = await worker.stop()

    assert outcome.end_reason is EndReason.COMPLETED
    assert code == 0
