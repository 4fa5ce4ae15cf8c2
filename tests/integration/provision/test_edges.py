from __future__ import annotations

from hatchway.model import EndReason, JobResult, ProvisionState
from tests.support.lab import Lab

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
    await lab.nothing_left()
