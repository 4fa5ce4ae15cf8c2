"""Workers that are replaced one after another while provisions run: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hatchway.model import EndReason, JobResult
from tests.support.namespaces import until
from tests.support.stack import Stack
from tests.support.worker_process import WorkerProcess, running_worker

AT_EACH = 16
"""Provisions that are started just before each of the two workers is told to stop."""


async def test_a_rolling_restart_of_all_workers_loses_no_job_and_runs_none_twice(
    stack: Stack, ran: Path, ready: Callable[[WorkerProcess], Awaitable[dict[str, Any]]]
) -> None:
    """Without any graceful time, so that what runs at each restart is cut short."""
    async with AsyncExitStack() as exits:
        old = [await exits.enter_async_context(running_worker(stack, "--graceful", "0")) for _ in range(2)]
        await asyncio.gather(*map(ready, old))
        started, codes = [], []
        for number, leaving in enumerate(old):
            jobs = range(number * AT_EACH, (number + 1) * AT_EACH)
            started += await asyncio.gather(*(stack.provision(job_id=f"job-{job}") for job in jobs))
            await until(lambda: _in_the_middle_of_it(stack), what="some have a slot, and not all have ended")
            leaving.signal(signal.SIGTERM)
            await ready(await exits.enter_async_context(running_worker(stack)))
            codes.append(await leaving.ended())

        outcomes = await asyncio.wait_for(asyncio.gather(*map(stack.hatchway.outcome, started)), 120)

    assert codes == [0, 0]
    assert {(outcome.end_reason, outcome.result) for outcome in outcomes} == {
        (EndReason.COMPLETED, JobResult.SUCCEEDED)
    }
    assert sorted(ran.read_text().split()) == sorted(one.agent_id for one in started), "a job ran twice, or not at all"
    await stack.nothing_left()


async def _in_the_middle_of_it(stack: Stack) -> bool:
    return len(await stack.slots.list()) >= AT_EACH // 4
