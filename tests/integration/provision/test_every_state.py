"""Cancel and reset, at every state: one agent at most, every state ends, nothing is left."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus

from hatchway.client import ProvisionFailed
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState, ScaleDownReason
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.states import AT, let_go

S = ProvisionState


@pytest.mark.scenario("S14", "S18")
@pytest.mark.parametrize("state", AT)
async def test_a_cancel_ends_cancelled_with_its_compute_gone(lab: Lab, state: str) -> None:
    started = await AT[state](lab)

    await lab.hatchway.cancel(started.workflow_id)
    await let_go(lab, started)

    with pytest.raises(ProvisionFailed) as ended:
        await lab.outcome(started)
    assert ended.value.cancelled
    assert (await lab.handle(started).describe()).status is WorkflowExecutionStatus.CANCELED
    assert lab.cloud.created(started.agent_id) <= 1
    if started.agent_id in lab.backend.reasons and state != "tearing-down":
        assert lab.backend.reasons[started.agent_id] is ScaleDownReason.SHUTDOWN
    await lab.nothing_left()


@pytest.mark.parametrize("state", AT)
@pytest.mark.parametrize("to_start", [True, False], ids=["to-the-start", "to-the-last-task"])
async def test_a_reset_goes_on_with_the_same_agent(lab: Lab, state: str, to_start: bool) -> None:
    started = await AT[state](lab)

    again = await lab.reset(started, to_start=to_start)
    await let_go(lab, started)

    if state == "tearing-down":
        failure = await lab.failure(again)
        assert failure.error_type in (ErrorType.SPAWN_FAILED, ErrorType.AGENT_LOST)
    else:
        status = await lab.reaches(again, S.AWAITING_ADOPTION, S.ACTIVE)
        assert status.agent_id == started.agent_id
        if status.state is S.AWAITING_ADOPTION:
            await lab.adopt(again)
        await lab.complete(again)
        assert (await lab.outcome(again)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 1
    assert lab.cloud.most <= 1
    await lab.nothing_left()


async def test_whoever_waits_for_a_provision_goes_on_waiting_after_a_reset(lab: Lab) -> None:
    started = await AT["awaiting-adoption"](lab)
    adopted = asyncio.create_task(lab.hatchway.wait_adopted(started))
    outcome = asyncio.create_task(lab.hatchway.outcome(started))
    await asyncio.sleep(0.2)

    await lab.reset(started)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    assert (await adopted).agent_id == started.agent_id
    await lab.complete(started)
    assert (await outcome).agent_id == started.agent_id
    await lab.nothing_left()


async def test_a_reset_of_an_ended_provision_is_refused(lab: Lab) -> None:
    started = await AT["active"](lab)
    await lab.complete(started)
    await lab.outcome(started)

    again = await lab.reset(started, to_start=True)

    failure = await lab.failure(again)
    assert failure.error_type == ErrorType.ALREADY_ENDED
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()


@pytest.mark.parametrize("task", [0, 1, 2])
async def test_a_reset_of_an_ended_provision_to_its_middle_ends_as_its_job_did(lab: Lab, task: int) -> None:
    """It has forgotten the adoption, whose update nobody sends again. What the job came to is known to the store."""
    started = await lab.provision(job_id="job-1", adoption_timeout=8.0)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)

    again = await lab.reset(started, after_spawn=task)
    outcome = await lab.outcome(again)

    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, "succeeded")
    assert outcome.agent_id == started.agent_id
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()


@pytest.mark.parametrize("state", [s for s in AT if s not in ("active", "tearing-down")])
async def test_a_terminated_provision_never_leads_to_a_second_agent_of_its_job(lab: Lab, state: str) -> None:
    first = await AT[state](lab)
    await lab.handle(first).terminate("by test")

    second = await lab.provision(job_id="job-1")
    await let_go(lab, second)
    await lab.reaches(second, S.AWAITING_ADOPTION)
    await lab.adopt(second)
    await lab.complete(second)

    assert (await lab.outcome(second)).agent_id == second.agent_id

    async def first_gone() -> bool:
        return first.agent_id not in lab.cloud.live and await lab.slots.get(first.agent_id) is None

    await until(first_gone)
    await lab.nothing_left()


@pytest.mark.scenario("S20")
async def test_a_cancelled_job_can_be_offered_again(lab: Lab) -> None:
    first = await AT["awaiting-adoption"](lab)
    await lab.hatchway.cancel(first.workflow_id)
    with pytest.raises(ProvisionFailed):
        await lab.outcome(first)

    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, S.AWAITING_ADOPTION)
    await lab.adopt(second)
    await lab.complete(second)

    assert (await lab.outcome(second)).agent_id != first.agent_id
    await lab.nothing_left()


async def test_two_cancels_and_a_release_at_once_end_it_once(lab: Lab) -> None:
    started = await AT["active"](lab)

    await asyncio.gather(
        lab.hatchway.cancel(started.workflow_id),
        lab.hatchway.cancel(started.workflow_id),
        lab.release(started, now=True),
    )

    with pytest.raises(ProvisionFailed) as ended:
        await lab.outcome(started)
    assert ended.value.cancelled
    await lab.nothing_left()
