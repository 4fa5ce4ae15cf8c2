"""A scaler whose spawns fail is left alone for a while: jobs wait or hear why, other scalers go on."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType, PermanentSpawnError, SpawnCode
from hatchway.model import ProvisionState
from hatchway.store.backoff import Backoff
from hatchway.store.waiters import Line
from tests.support.lab import SCALER, Lab
from tests.support.namespaces import until
from tests.support.scripted import ScriptedBackend, straight_on
from tests.support.stack import label_set, laptop

S = ProvisionState
CAUSE = "image_not_found: there is no agents/linux:9"


async def _no_such_image(_agent_id: str) -> None:
    raise PermanentSpawnError(SpawnCode.IMAGE_NOT_FOUND, "there is no agents/linux:9")


async def _finish(lab: Lab, started: Started) -> None:
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)


async def _nobody_waits(lab: Lab) -> bool:
    return await Line(lab.db).list() == []


async def _all_wait_but_those_who_tried(lab: Lab, jobs: int) -> bool:
    return not await lab.slots.list() and len(await Line(lab.db).list()) + len(lab.backend.specs) == jobs


async def _runs_out(lab: Lab) -> None:
    """The time that a scaler is left alone has gone by."""
    await lab.db.fetch_all("update scaler_failures set backoff_until = now() - interval '1 s'")


async def _fails(lab: Lab, **request: Any) -> ProvisionFailed:
    lab.backend.before_create = _no_such_image
    failure = await lab.failure(await lab.provision(**request))
    assert failure.error_type == ErrorType.SPAWN_FAILED
    return failure


@pytest.mark.scenario("S47")
async def test_while_a_scaler_backs_off_a_job_that_will_not_wait_hears_the_cause(lab: Lab) -> None:
    await _fails(lab, job_id="job-1")

    declined = await lab.failure(await lab.provision(job_id="job-2", on_capacity="decline"))

    assert (declined.error_type, declined.detail) == (ErrorType.DECLINED, "backing-off")
    assert CAUSE in str(declined)
    assert len(lab.backend.specs) == 1
    await lab.nothing_left()


@pytest.mark.scenario("S47")
async def test_a_job_that_waits_reads_the_cause_and_goes_on_once_the_backoff_has_run_out(lab: Lab) -> None:
    await _fails(lab, job_id="job-1")
    lab.backend.before_create = straight_on
    waiting = await lab.provision(job_id="job-2")
    status = await lab.reaches(waiting, S.QUEUED)

    await lab.sweep()
    early = (await lab.status(waiting)).state
    await _runs_out(lab)
    await lab.sweep()
    await _finish(lab, waiting)

    assert "backs off after failures until" in status.waiting_for
    assert CAUSE in status.waiting_for
    assert early is S.QUEUED
    await lab.nothing_left()


@pytest.mark.scenario("S39")
async def test_a_hundred_jobs_of_a_bad_image_are_few_attempts_and_no_matter_to_other_scalers(lab: Lab) -> None:
    """Two agents at once may try, and then nobody until the backoff has run out."""
    config = laptop(maxAgents=2) | {"backoff": {"baseSeconds": 600, "maxSeconds": 900}}  # it does not run out by itself
    config["scalers"].append({**config["scalers"][0], "name": "other", "labelSets": [label_set("other")]})
    await lab.apply(config)
    lab.start_host(ScriptedBackend(lab.cloud, host="host-2"), scaler="other")
    lab.backend.before_create = _no_such_image

    jobs = [await lab.provision(job_id=f"job-{number}") for number in range(100)]
    await _finish(lab, await lab.provision(job_id="elsewhere", labels=["other"]))
    await until(lambda: _all_wait_but_those_who_tried(lab, 100))
    first = len(lab.backend.specs)
    await _runs_out(lab)
    await lab.sweep()
    await lab.sweep()
    second = len(lab.backend.specs)

    assert 1 <= first <= 2
    assert second <= first + 2
    failures = await Backoff(lab.db).get(SCALER)
    assert failures is not None
    assert failures.until is not None
    assert await Backoff(lab.db).get("other") is None
    for job in jobs:
        await lab.hatchway.cancel(job.workflow_id)
    await until(lambda: _nobody_waits(lab))
    await lab.nothing_left()


@pytest.mark.scenario("S16")
async def test_five_permanent_failures_hold_no_slot_after_their_teardown(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    lab.backend.before_create = _no_such_image

    for number in range(5):
        failure = await _fails(lab, job_id=f"job-{number}")
        assert CAUSE in str(failure)
        await _runs_out(lab)

    await lab.nothing_left()
    lab.backend.before_create = straight_on
    await _finish(lab, await lab.provision(job_id="job-6"))
    await lab.nothing_left()


@pytest.mark.parametrize("how", ["its deadline passes", "it exits"])
async def test_an_agent_that_never_registers_lets_the_scaler_back_off_and_an_adoption_ends_that(
    lab: Lab, how: str
) -> None:
    if how == "it exits":
        silent = await lab.provision(job_id="job-1")
        await lab.reaches(silent, S.AWAITING_ADOPTION)
        await lab.exits(silent)
    else:
        silent = await lab.provision(job_id="job-1", adoption_timeout=0.3)
    await lab.failure(silent)
    failed = await Backoff(lab.db).get(SCALER)
    await _runs_out(lab)
    await _finish(lab, await lab.provision(job_id="job-2"))
    cleared = await Backoff(lab.db).get(SCALER)

    assert failed is not None
    assert failed.last_code == ("agent_exited" if how == "it exits" else "adoption_timeout")
    assert failed.until is not None
    assert cleared is not None
    assert cleared.consecutive == 0
    assert cleared.until is None


async def test_the_configuration_says_how_long_a_scaler_is_left_alone(lab: Lab) -> None:
    await lab.apply({**laptop(), "backoff": {"baseSeconds": 500, "maxSeconds": 600}})

    await _fails(lab, job_id="job-1")

    pause = "select extract(epoch from backoff_until - last_failed_at)::float8 from scaler_failures"
    assert 390 < await lab.db.fetch_value(pause) <= 500
