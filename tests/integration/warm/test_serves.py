"""A job takes a warm agent that stands ready, and its provision ends as that agent ends."""

from __future__ import annotations

from hatchway.model import EndReason, JobResult, ProvisionState
from tests.support.lab import Lab
from tests.support.pools import filled

S = ProvisionState


async def test_a_job_is_served_by_a_warm_agent(lab: Lab) -> None:
    (warm,) = await filled(lab)

    started = await lab.provision(job_id="job-1", run_id="run-1")
    spec = await lab.hatchway.wait_adopted(started)

    assert spec.agent_id == warm.agent_id
    assert (spec.job_id, spec.run_id, spec.warm) == ("job-1", "run-1", False)
    await lab.complete(warm)
    outcome = await lab.outcome(started)
    assert (outcome.agent_id, outcome.end_reason, outcome.result) == (
        warm.agent_id, EndReason.COMPLETED, JobResult.SUCCEEDED,
    )  # fmt: skip
    assert (await lab.outcome(warm)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 0
