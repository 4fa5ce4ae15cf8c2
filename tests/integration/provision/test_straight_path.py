"""One provision from the request to the released slot, on the real thing."""

from __future__ import annotations

from hatchway.model import EndReason, JobResult, TeardownState
from tests.support.stack import Stack


async def test_a_job_gets_an_agent_that_runs_it_and_goes(stack: Stack) -> None:
    started = await stack.provision(job_id="job-1", run_id="run-1")

    spec = await stack.hatchway.wait_adopted(started)
    outcome = await stack.hatchway.outcome(started)

    assert spec.agent_id == started.agent_id == outcome.agent_id
    assert spec.job_id == "job-1"
    assert outcome.result is JobResult.SUCCEEDED
    assert outcome.end_reason is EndReason.COMPLETED
    assert outcome.teardown is TeardownState.CONFIRMED
    await stack.nothing_left()
    recorded = await stack.outcomes.get(started.agent_id)
    assert recorded is not None
    assert (recorded.end_reason, recorded.result) == ("completed", "succeeded")
    assert recorded.closed_at is not None


async def test_a_failed_job_is_a_served_one_with_its_result(stack: Stack) -> None:
    started = await stack.provision(labels=["fails"], job_id="job-2")

    outcome = await stack.hatchway.outcome(started)

    assert outcome.result is JobResult.FAILED
    assert outcome.end_reason is EndReason.COMPLETED
    await stack.nothing_left()
