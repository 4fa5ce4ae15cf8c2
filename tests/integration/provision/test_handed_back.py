"""A spawn whose worker leaves, and the next worker that takes it up."""

from __future__ import annotations

import asyncio

from temporalio.worker import Worker

from hatchway.handing_back import HandingBack
from hatchway.model import ProvisionState
from hatchway.task_queues import spawn_queue
from tests.support.lab import SCALER, Lab
from tests.support.scripted import Gate


async def test_a_spawn_that_is_handed_back_late_waits_for_a_worker_as_any_other(lab: Lab) -> None:
    """The pull took longer than the job would have stood in the line; the worker is replaced in the middle of it."""
    await lab.stop_host(lab.backend.host_id)
    lab.backend.before_create = gate = Gate()
    leaving = HandingBack()
    async with Worker(
        lab.temporal, task_queue=spawn_queue(SCALER), activities=[lab.compute(lab.backend).spawn],
        interceptors=[leaving],
    ):  # fmt: skip
        started = await lab.provision(job_id="job-1", wait_timeout=6)
        await gate.reached.wait()
        await asyncio.sleep(6.5)
        leaving.now()
    await asyncio.sleep(2)  # nobody polls

    gate.open()
    lab.start_host(lab.backend)

    await lab.reaches(started, ProvisionState.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    assert (await lab.outcome(started)).result == "succeeded"
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()
