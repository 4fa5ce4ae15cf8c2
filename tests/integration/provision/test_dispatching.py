"""A provision from the dispatcher's side: who waits for it, and one job that is offered again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType, PermanentSpawnError, SpawnCode
from hatchway.model import ProvisionState
from hatchway.store.reservations import Reservation, ReserveAnswer
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate

S = ProvisionState


async def test_whoever_waits_for_the_adoption_hears_the_failure(lab: Lab) -> None:
    async def refuses(agent_id: str) -> None:
        raise PermanentSpawnError(SpawnCode.COMMAND_NOT_FOUND, "no such command")

    gate = Gate()

    async def gated(agent_id: str) -> None:
        await gate(agent_id)
        await refuses(agent_id)

    lab.backend.before_create = gated
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    waiting = asyncio.create_task(lab.handle(started).execute_update("wait_adopted", {}))
    await until(lambda: _is_waited_for(lab, started))

    gate.open()

    with pytest.raises(WorkflowUpdateFailedError) as heard:
        await waiting
    assert getattr(heard.value.cause, "type", None) == ErrorType.SPAWN_FAILED
    await lab.nothing_left()


async def test_whoever_waits_for_the_adoption_hears_that_the_provision_was_terminated(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    waiting = asyncio.create_task(lab.hatchway.wait_adopted(started))
    await until(lambda: _is_waited_for(lab, started))
    await lab.handle(started).terminate("by test")

    with pytest.raises(ProvisionFailed) as heard:
        await asyncio.wait_for(waiting, 60)
    assert heard.value.error_type == "Terminated"


async def _is_waited_for(lab: Lab, started: Started) -> bool:
    """The workflow has taken on the update of whoever waits for the adoption."""
    events = lab.handle(started).fetch_history_events()
    return any([e.HasField("workflow_execution_update_accepted_event_attributes") async for e in events])


@pytest.mark.scenario("S20")
async def test_a_job_that_is_offered_a_hundred_times_is_one_provision(lab: Lab) -> None:
    offers = await asyncio.gather(*(lab.provision(job_id="job-1") for _ in range(100)))

    assert len({offer.agent_id for offer in offers}) == 1
    started = offers[0]
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)
    after = await lab.provision(job_id="job-1")

    assert after.joined
    assert after.agent_id == started.agent_id
    assert (await lab.outcome(after)).agent_id == started.agent_id
    assert len([1 for what, *_ in lab.cloud.log if what == "created"]) == 1
    await lab.nothing_left()


async def test_a_served_job_is_not_served_under_another_workflow_id(lab: Lab) -> None:
    first = await lab.provision(job_id="job-1")
    await lab.reaches(first, S.AWAITING_ADOPTION)
    await lab.adopt(first)
    await lab.complete(first)
    await lab.outcome(first)

    second = await lab.provision("provision/mine", job_id="job-1")

    failure = await lab.failure(second)
    assert (failure.error_type, failure.detail) == (ErrorType.DECLINED, "job-served")
    await lab.nothing_left()


async def test_a_job_with_an_agent_gets_no_second_one_under_another_workflow_id(lab: Lab) -> None:
    first = await lab.provision(job_id="job-1")
    await lab.reaches(first, S.AWAITING_ADOPTION)

    second = await lab.provision("provision/mine", job_id="job-1")

    failure = await lab.failure(second)
    assert (failure.error_type, failure.detail) == (ErrorType.DECLINED, "job-has-agent")
    await lab.adopt(first)
    await lab.complete(first)
    await lab.outcome(first)
    await lab.nothing_left()


async def test_a_terminated_provision_makes_way_for_the_next_offer(lab: Lab) -> None:
    """Terminate runs no cleanup; the next offer of the job tears the orphan down and gets an agent of its own."""
    first = await lab.provision(job_id="job-1")
    await lab.reaches(first, S.AWAITING_ADOPTION)
    await lab.handle(first).terminate("by test")

    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, S.AWAITING_ADOPTION)
    await lab.adopt(second)
    await lab.complete(second)
    await lab.outcome(second)

    assert second.agent_id != first.agent_id
    await lab.nothing_left()


async def test_the_next_offer_has_its_slot_before_the_teardown_of_the_terminated_one_counts_as_a_failure(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That has the scaler left alone for a while: an offer that came after it would wait, and nothing sweeps here."""
    first = await lab.provision(job_id="job-1")
    await lab.reaches(first, S.AWAITING_ADOPTION)
    await lab.handle(first).terminate("by test")
    teardown, reserve = lab.temporal.get_workflow_handle(f"teardown/{first.agent_id}"), lab.slots.reserve

    async def none_or_over() -> bool:
        try:
            return (await teardown.describe()).status is not WorkflowExecutionStatus.RUNNING
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            return True

    async def late(asked: Reservation) -> ReserveAnswer:
        """As on a busy machine: whatever was begun before this is done by then."""
        await until(none_or_over)
        return await reserve(asked)

    monkeypatch.setattr(lab.slots, "reserve", late)

    second = await lab.provision(job_id="job-1")
    status = await lab.reaches(second, S.AWAITING_ADOPTION, S.QUEUED)

    assert status.state is S.AWAITING_ADOPTION, status.waiting_for
    await lab.adopt(second)
    await lab.complete(second)
    await lab.outcome(second)
    await lab.nothing_left()


async def test_a_terminated_provision_whose_agent_is_at_work_keeps_the_job(lab: Lab) -> None:
    first = await lab.provision(job_id="job-1")
    await lab.reaches(first, S.AWAITING_ADOPTION)
    await lab.adopt(first)
    await lab.handle(first).terminate("by test")

    second = await lab.provision(job_id="job-1")

    failure = await lab.failure(second)
    assert (failure.error_type, failure.detail) == (ErrorType.DECLINED, "job-has-agent")
    assert list(lab.cloud.live) == [first.agent_id]


@pytest.mark.parametrize("kind", ["ProvisionWorkflow", "TeardownWorkflow"])
async def test_a_workflow_timeout_on_the_start_is_refused(lab: Lab, kind: str) -> None:
    handle = await lab.temporal.start_workflow(
        kind, {"labels": ["linux"]}, id="timed", task_queue="hatchway", run_timeout=timedelta(hours=1)
    )

    description = await until(lambda: _closed(handle))

    assert description.status is WorkflowExecutionStatus.FAILED
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert "a run timeout" in str(failed.value.cause)
    assert lab.cloud.log == []


async def _closed(handle: object) -> object:
    description = await handle.describe()  # type: ignore[attr-defined]
    return description if description.status is not WorkflowExecutionStatus.RUNNING else None
