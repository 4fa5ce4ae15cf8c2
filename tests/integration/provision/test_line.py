"""Provisions that have to wait for a slot: caps hold, the line hands over, and every wait ends with a reason."""

from __future__ import annotations

import asyncio

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import label_set, laptop

S = ProvisionState


async def _finish(lab: Lab, started: Started) -> None:
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)


async def test_a_job_that_will_not_wait_is_declined_with_the_cap_and_its_numbers(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)

    declined = await lab.failure(await lab.provision(job_id="job-1", on_capacity="decline"))

    assert (declined.error_type, declined.detail) == (ErrorType.DECLINED, "at-capacity")
    assert "scaler:laptop is full: 1 of 1 agents" in str(declined)
    await _finish(lab, holder)
    await lab.nothing_left()


async def test_a_scaler_with_no_agents_allowed_never_fits(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=0))

    declined = await lab.failure(await lab.provision(job_id="job-1"))

    assert (declined.error_type, declined.detail) == (ErrorType.DECLINED, "never-fits")
    await lab.nothing_left()


async def test_a_freed_slot_is_handed_to_the_next_in_the_line(lab: Lab) -> None:
    """No schedule, no poll: the release hands over in its own transaction."""
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    waiting = []
    for number in range(3):
        waiting.append(await lab.provision(job_id=f"job-{number}"))
        await lab.reaches(waiting[-1], S.QUEUED)
    urgent = await lab.provision(job_id="urgent", priority=1)
    status = await lab.reaches(urgent, S.QUEUED)

    await _finish(lab, holder)
    for following in [urgent, *waiting]:
        await _finish(lab, following)

    assert status.line_position == 1
    order = [agent for what, agent, _ in lab.cloud.log if what == "created"]
    assert order == [started.agent_id for started in [holder, urgent, *waiting]]
    assert lab.cloud.most == 1
    await lab.nothing_left()


async def test_a_wait_ends_at_its_timeout_with_the_cap_that_bound(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)

    failure = await lab.failure(await lab.provision(job_id="job-1", wait_timeout=0.5))

    assert (failure.error_type, failure.detail) == (ErrorType.DECLINED, "wait-timeout")
    assert "scaler:laptop is full" in str(failure)
    await _finish(lab, holder)
    await lab.nothing_left()


async def test_a_waiter_that_is_released_or_cancelled_leaves_the_line(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    released, cancelled = await lab.provision(job_id="job-1"), await lab.provision(job_id="job-2")
    await asyncio.gather(lab.reaches(released, S.QUEUED), lab.reaches(cancelled, S.QUEUED))

    await lab.release(released)
    await lab.hatchway.cancel(cancelled.workflow_id)

    assert (await lab.failure(released)).error_type == ErrorType.RELEASED
    with pytest.raises(ProvisionFailed, match="cancelled"):
        await lab.outcome(cancelled)
    assert await lab.db.fetch_all("select agent_id from scaler_waiters") == []
    await _finish(lab, holder)
    await lab.nothing_left()


async def test_a_waiter_whose_workflow_was_terminated_does_not_keep_its_grant(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    dead, alive = await lab.provision(job_id="job-1"), await lab.provision(job_id="job-2")
    await lab.reaches(dead, S.QUEUED)
    await lab.reaches(alive, S.QUEUED)
    await lab.handle(dead).terminate("by test")

    await _finish(lab, holder)
    await _finish(lab, alive)

    await lab.nothing_left()


@pytest.mark.scenario("S10", "S11")
async def test_agents_that_are_still_booting_count_against_the_cap(lab: Lab) -> None:
    """Ten jobs at once against a cap of three: three machines, also while none of them has registered."""
    await lab.apply(laptop(maxAgents=3))
    jobs = [await lab.provision(job_id=f"job-{number}") for number in range(10)]
    await until(lambda: len(lab.cloud.live) == 3)

    for job in jobs:
        await lab.reaches(job, S.AWAITING_ADOPTION, S.QUEUED)
    assert lab.cloud.most == 3
    left = list(jobs)
    while left:
        ready = [job for job in left if (await lab.status(job)).state is S.AWAITING_ADOPTION]
        for job in ready:
            await _finish(lab, job)
            left.remove(job)

    assert lab.cloud.most == 3
    await lab.nothing_left()


async def test_a_retried_reserve_after_a_lost_reply_holds_one_slot(lab: Lab) -> None:
    """The grant that the line gave is taken up by the workflow's own next call, once."""
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    waiting = await lab.provision(job_id="job-1")
    await lab.reaches(waiting, S.QUEUED)
    await lab.release(holder)
    await lab.reaches(waiting, S.AWAITING_ADOPTION)

    await lab.signal(waiting, "granted", {"agent_id": waiting.agent_id})
    await lab.adopt(waiting)
    await lab.complete(waiting)

    assert (await lab.outcome(waiting)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


@pytest.mark.parametrize("job_id", [None, "job-1"])
async def test_a_provision_that_the_configuration_plans_out_of_the_line_leaves_it(lab: Lab, job_id: str | None) -> None:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    waiting = await lab.provision(job_id=job_id, wait_timeout=15)
    await lab.reaches(waiting, S.QUEUED)

    await lab.apply(laptop(maxAgents=1, labelSets=[label_set("other")]))
    failure = await lab.failure(waiting)

    assert failure.error_type == ErrorType.NO_MATCHING_SCALER
    assert await lab.db.fetch_all("select agent_id from scaler_waiters") == []
    await _finish(lab, holder)
    await lab.nothing_left()
