"""Every edge of the provision's diagram: who wins, what it ends with, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
from temporalio.client import WorkflowUpdateFailedError

from hatchway.errors import ErrorType, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.model import (
    AdoptRequest,
    ComputeExit,
    EndReason,
    JobResult,
    ProvisionState,
    ReleaseRequest,
    ScaleDownReason,
)
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate

S = ProvisionState


async def test_a_completed_provision_passes_every_stage_and_leaves_nothing(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1", run_id="run-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    spec = await lab.adopt(started)
    await lab.complete(started)
    outcome = await lab.outcome(started)

    assert spec.job_id == "job-1"
    assert outcome.end_reason is EndReason.COMPLETED
    assert outcome.result is JobResult.SUCCEEDED
    assert lab.backend.reasons[started.agent_id] is ScaleDownReason.JOB_COMPLETE
    await lab.nothing_left()


async def test_no_scaler_matches_says_why_for_each(lab: Lab) -> None:
    started = await lab.provision(labels=["gpu"])

    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.NO_MATCHING_SCALER
    assert "laptop: has no label gpu" in str(failure)
    await lab.nothing_left()


async def test_an_agent_may_register_before_the_spawn_call_has_returned(lab: Lab) -> None:
    lab.backend.after_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()

    await lab.adopt(started)
    gate.open()
    await lab.reaches(started, S.ACTIVE)
    await lab.complete(started)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


async def test_an_adoption_proves_the_spawn_whatever_the_spawn_call_says(lab: Lab) -> None:
    gate = Gate()

    async def fails_late(agent_id: str) -> None:
        await gate(agent_id)
        raise PermanentSpawnError(SpawnCode.INVALID_SPEC, "the reply was garbled")

    lab.backend.after_create = fails_late
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    await lab.adopt(started)

    gate.open()
    await lab.reaches(started, S.ACTIVE)
    await lab.complete(started)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


@pytest.mark.scenario("S15")
async def test_a_permanent_spawn_error_fails_within_one_attempt_and_says_its_code(lab: Lab) -> None:
    async def refuses(agent_id: str) -> None:
        raise PermanentSpawnError(SpawnCode.IMAGE_NOT_FOUND, "there is no such image")

    lab.backend.before_create = refuses
    started = await lab.provision(job_id="job-1")

    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.SPAWN_FAILED
    assert "image_not_found: there is no such image" in str(failure)
    assert failure.detail == EndReason.SPAWN_FAILED
    await lab.nothing_left()


async def test_a_transient_spawn_error_is_tried_again(lab: Lab) -> None:
    attempts = 0

    async def fails_once(agent_id: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "the engine is restarting")

    lab.backend.before_create = fails_once
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert attempts == 2
    await lab.nothing_left()


async def test_an_agent_that_never_registers_is_given_up_at_its_deadline(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1", adoption_timeout=0.3)

    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.ADOPTION_TIMEOUT
    assert lab.backend.reasons[started.agent_id] is ScaleDownReason.SPAWN_TIMEOUT
    await lab.nothing_left()


async def test_an_agent_that_exits_before_registering_fails_with_its_code_and_output(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    await lab.exits(started, code=1, tail="cannot reach the gateway")
    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.SPAWN_FAILED
    assert "exit code 1 before it registered" in str(failure)
    assert "cannot reach the gateway" in str(failure)
    await lab.nothing_left()


async def test_an_agent_whose_compute_vanishes_at_work_is_lost(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    await lab.exits(started, code=137, tail="what the job printed")
    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.AGENT_LOST
    assert "what the job printed" not in str(failure)
    assert lab.backend.reasons[started.agent_id] is ScaleDownReason.HEARTBEAT_TIMEOUT
    await lab.nothing_left()


async def test_a_condemned_agent_is_torn_down_busy_or_not(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    await lab.condemn(started)

    assert (await lab.failure(started)).error_type == ErrorType.AGENT_LOST
    await lab.nothing_left()


async def test_a_busy_agent_is_not_outlived_by_its_maximum_lifetime(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1", max_lifetime=0.5)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    failure = await lab.failure(started)

    assert failure.error_type == ErrorType.LIFETIME_EXCEEDED
    assert lab.backend.reasons[started.agent_id] is ScaleDownReason.SHUTDOWN
    await lab.nothing_left()


@pytest.mark.parametrize("reason", [EndReason.IDLE, EndReason.DRAINED, EndReason.RELEASED])
async def test_a_busy_agent_that_is_released_finishes_its_job_first(lab: Lab, reason: EndReason) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    await lab.release(started, reason)

    async def flagged() -> bool:
        row = await lab.slots.get(started.agent_id)
        return row is not None and row.drain_requested

    await until(flagged)
    assert (await lab.status(started)).state is S.ACTIVE
    assert started.agent_id in lab.cloud.live
    await lab.complete(started)
    outcome = await lab.outcome(started)
    assert outcome.end_reason is EndReason.COMPLETED
    await lab.nothing_left()


async def test_release_now_does_not_wait_for_the_job(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.release(started, EndReason.OPERATOR)

    await lab.release(started, EndReason.OPERATOR, now=True)
    outcome = await lab.outcome(started)

    assert outcome.end_reason is EndReason.OPERATOR
    assert outcome.result is JobResult.UNKNOWN
    await lab.nothing_left()


async def test_a_release_before_adoption_is_a_benign_failure(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    await lab.release(started)

    failure = await lab.failure(started)
    assert failure.error_type == ErrorType.RELEASED
    await lab.nothing_left()


# ── completion against everything else ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.scenario("S25")
async def test_a_completion_beats_whatever_arrives_with_it(lab: Lab) -> None:
    """Completion and exit within one workflow task, in both orders: no result is lost."""
    for number, order in enumerate(permutations(["complete", "exit", "condemn"])):
        started = await lab.provision(job_id=f"job-{number}")
        await lab.reaches(started, S.AWAITING_ADOPTION)
        await lab.adopt(started)
        await lab.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)
        send = {
            "complete": lab.release(started, EndReason.COMPLETED),
            "exit": lab.exits(started, code=0),
            "condemn": lab.condemn(started),
        }

        await asyncio.gather(*(send[name] for name in order))

        outcome = await lab.outcome(started)
        assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED), order
    await lab.nothing_left()


async def test_a_committed_completion_counts_even_when_its_signal_is_lost(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.outcomes.complete(started.agent_id, "r-1", "failed", 3)

    await lab.exits(started, code=3)

    outcome = await lab.outcome(started)
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.FAILED)
    await lab.nothing_left()


# ── who may adopt ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_process_may_register_again_and_at_another_gateway(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    first = await lab.adopt(started)

    again = await lab.adopt(started)
    elsewhere = await lab.adopt(started, instance="gateway-2")

    assert first == again == elsewhere
    row = await lab.slots.get(started.agent_id)
    assert row is not None
    assert row.adopted_by == "gateway-2"
    await lab.complete(started)
    await lab.outcome(started)
    await lab.nothing_left()


async def test_another_process_is_refused_while_the_first_one_lives(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    refusal = await lab.adoption_refusal(started, registration="r-2")

    assert refusal == ErrorType.ADOPTED_BY_OTHER
    await lab.complete(started)
    await lab.outcome(started)


async def test_nobody_is_adopted_once_the_teardown_has_begun(lab: Lab) -> None:
    lab.backend.before_destroy = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.release(started)
    await gate.reached.wait()

    refusal = await lab.adoption_refusal(started)

    assert refusal == ErrorType.TEARING_DOWN
    gate.open()
    await lab.failure(started)
    await lab.nothing_left()


@pytest.mark.usefixtures("unhurried")
async def test_an_update_for_another_agent_is_rejected_and_leaves_no_event(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    before = (await lab.handle(started).describe()).history_length
    stranger = AdoptRequest(agent_id="scaler-other", instance_id="gateway-1", registration_id="r-1")

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await lab.handle(started).execute_update("adopt", stranger)

    assert getattr(refused.value.cause, "type", None) == ErrorType.NO_SUCH_PROVISION
    assert (await lab.handle(started).describe()).history_length == before
    await lab.release(started)
    await lab.failure(started)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("release", ReleaseRequest(agent_id="scaler-other", by="test", now=True)),
        ("compute_exited", ComputeExit(agent_id="scaler-other", exit_code=1)),
        ("release", {"agent_id": 7}),
        ("release", "nonsense"),
        ("condemn", None),
        ("no_such_signal", {}),
    ],
)
async def test_a_signal_that_is_malformed_or_for_another_agent_changes_nothing(
    lab: Lab, name: str, payload: object
) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    await lab.signal(started, name, payload)
    await lab.adopt(started)

    assert (await lab.status(started)).state is S.ACTIVE
    await lab.complete(started)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED


@pytest.mark.parametrize(
    ("name", "reason"), [("condemn", "completed"), ("condemn", "idle"), ("release", "heartbeat-timeout")]
)
async def test_a_signal_does_not_end_an_agent_for_a_reason_of_another_signals(lab: Lab, name: str, reason: str) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)

    by = {"by": "test", "now": True} if name == "release" else {}
    await lab.signal(started, name, {"agent_id": started.agent_id, "reason": reason, **by})

    assert (await lab.status(started)).state is S.ACTIVE
    await lab.complete(started)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED


@pytest.mark.scenario("S22")
async def test_every_message_delivered_twice_ends_the_same(lab: Lab) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    await asyncio.gather(lab.adopt(started), lab.adopt(started))
    await lab.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)
    lab.backend.before_destroy = gate = Gate()
    await asyncio.gather(*(lab.release(started, EndReason.COMPLETED) for _ in range(2)))
    await gate.reached.wait()
    await asyncio.gather(*(lab.exits(started, code=0) for _ in range(2)))
    gate.open()

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()
