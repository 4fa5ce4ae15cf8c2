"""The whole path by Temporal: a job, a customer's workflow, a machine that registers, works, and is deleted."""

from __future__ import annotations

from hatchway.model import EndReason, JobResult, ProvisionState, TeardownState
from tests.support.customer import Customer
from tests.support.stack import Stack

S = ProvisionState


async def test_a_job_is_served_by_a_machine_of_the_customers(stack: Stack, customer: Customer) -> None:
    started = await stack.provision(job_id="job-1", run_id="run-1")

    spec = await stack.hatchway.wait_adopted(started)
    assert spec.agent_id == started.agent_id
    assert customer.machines.runs(started.agent_id)
    await stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    outcome = await stack.hatchway.outcome(started)

    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
    assert outcome.teardown is TeardownState.CONFIRMED
    assert not customer.machines.runs(started.agent_id)
    up = await customer.event_of(customer.scale_up(started.agent_id))
    assert (up["scalerName"], up["jobId"], up["requestId"]) == ("customers", "job-1", f"{started.agent_id}:scale-up")
    assert up["claimCode"].startswith("sealed.v1.")
    down = await customer.event_of(customer.scale_down(started.agent_id))
    assert down == {
        "scalerName": "customers", "agentId": started.agent_id, "reason": "job-complete",
        "requestId": f"{started.agent_id}:scale-down",
    }  # fmt: skip
    await stack.nothing_left()
