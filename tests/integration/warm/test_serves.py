"""A job takes a warm agent that stands ready, and its provision ends as that agent ends."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from hatchway.client import Started
from hatchway.errors import DeclineReason, ErrorType
from hatchway.model import AdoptedSpec, BindRequest, EndReason, JobResult, ProvisionState, TeardownState
from hatchway.store.warm import WarmAgents
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.pools import filled, pooled, taken, warm_rows
from workflows import following

S = ProvisionState


async def test_a_job_is_served_by_a_warm_agent(lab: Lab) -> None:
    (warm,) = await filled(lab)

    started = await lab.provision(job_id="job-1", run_id="run-1")
    spec = await lab.hatchway.wait_adopted(started)

    assert spec.agent_id == warm.agent_id
    assert (spec.job_id, spec.run_id, spec.warm) == ("job-1", "run-1", False)
    await lab.complete(warm)
    outcome = await lab.outcome(started)
    assert (outcome.agent_id, outcome.end_reason, outcome.result, outcome.teardown) == (
        warm.agent_id, EndReason.COMPLETED, JobResult.SUCCEEDED, TeardownState.CONFIRMED,
    )  # fmt: skip
    assert (await lab.outcome(warm)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 0


async def test_whoever_took_one_has_the_pool_filled_again(lab: Lab) -> None:
    await filled(lab)

    await taken(lab, "job-1")

    async def another() -> bool:
        return len(await warm_rows(lab)) == 1

    await until(another, what="the pool being filled without a sweep")


@pytest.mark.parametrize(
    "job",
    [
        {"resources": {"cpus": 2, "memory": "1Gi"}},
        {"container": {"image": "app", "env": {"A": "1"}}},
        {"container": {"image": "app", "env": {"A": {"secret": "vault:a"}}}},
    ],
    ids=["a larger shape", "an environment", "a secret"],
)
async def test_a_job_that_it_does_not_fit_gets_an_agent_of_its_own(lab: Lab, job: dict[str, Any]) -> None:
    lab.environ["HATCHWAY_SECRET_A"] = "not-a-secret"
    await lab.apply({**pooled(size=1), "secrets": {"contexts": {"vault": {"type": "env"}}}})
    await filled(lab)

    started = await lab.provision(job_id="job-1", **job)

    await lab.reaches(started, S.AWAITING_ADOPTION)
    assert len(await warm_rows(lab)) == 1


async def test_of_two_jobs_for_one_warm_agent_one_gets_it(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))

    jobs = await asyncio.gather(*(lab.provision(job_id=f"job-{n}") for n in (1, 2)))
    states = await asyncio.gather(*(lab.reaches(job, S.ACTIVE, S.AWAITING_ADOPTION) for job in jobs))

    assert sorted(status.state for status in states) == [S.ACTIVE, S.AWAITING_ADOPTION]
    assert lab.cloud.created(warm.agent_id) == 1
    assert len(lab.cloud.live) == 2


async def test_a_job_that_is_offered_again_joins_the_one_that_follows(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    again = await lab.provision(job_id="job-1")
    elsewhere = await lab.failure(await lab.provision("provision/elsewhere", job_id="job-1"))

    assert again.agent_id == started.agent_id
    assert (await lab.hatchway.wait_adopted(again)).agent_id == warm.agent_id
    assert (elsewhere.error_type, elsewhere.detail) == (ErrorType.DECLINED, DeclineReason.JOB_HAS_AGENT)


async def test_a_served_job_is_not_served_again(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")
    await lab.complete(warm, "failed")
    assert (await lab.outcome(started)).result is JobResult.FAILED

    again = await lab.failure(await lab.provision("provision/elsewhere", job_id="job-1"))

    assert again.detail == DeclineReason.JOB_SERVED


@pytest.mark.parametrize("to_start", [True, False], ids=["to the start", "to the last step"])
async def test_a_provision_that_is_reset_while_it_follows_goes_on_following(lab: Lab, to_start: bool) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    moved = await lab.reset(started, to_start=to_start)

    assert (await lab.hatchway.wait_adopted(moved)).agent_id == warm.agent_id
    await lab.complete(warm)
    assert (await lab.outcome(moved)).agent_id == warm.agent_id


@pytest.mark.parametrize("to_start", [True, False], ids=["to the start", "to the last step"])
async def test_a_warm_agent_whose_workflow_is_reset_at_work_keeps_its_job(lab: Lab, to_start: bool) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    await lab.reset(warm, to_start=to_start)
    await lab.release(warm)  # busy: it is asked to drain, and not torn down

    async def asked() -> bool:
        row = await lab.slots.get(warm.agent_id)
        return row is not None and row.drain_requested and not row.closing

    await until(asked)
    await lab.complete(warm)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda lab, warm: lab.exits(warm, code=137), ErrorType.AGENT_LOST),
        (lambda lab, warm: lab.condemn(warm), ErrorType.AGENT_LOST),
    ],
    ids=["its compute exits", "it is condemned"],
)
async def test_the_loss_of_the_agent_is_the_provision_s(lab: Lab, end: Any, error: ErrorType) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    await end(lab, warm)

    assert (await lab.failure(started)).error_type == error


async def test_the_job_s_lifetime_runs_from_its_binding(lab: Lab) -> None:
    await filled(lab)

    started = await taken(lab, "job-1", max_lifetime=2.0)

    assert (await lab.failure(started)).error_type == ErrorType.LIFETIME_EXCEEDED


async def test_a_cancelled_job_takes_its_warm_agent_with_it(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    started = await taken(lab, "job-1")

    await lab.hatchway.cancel(started.workflow_id)

    assert (await lab.failure(started)).cancelled
    await lab.outcome(warm)
    await lab.nothing_left()


async def test_an_agent_that_completes_before_the_cancel_arrives_has_completed(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")
    await lab.outcomes.complete(warm.agent_id, "r-1", "succeeded", 0)

    await lab.hatchway.cancel(started.workflow_id)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED


async def test_who_follows_a_terminated_workflow_hears_of_the_end_all_the_same(lab: Lab) -> None:
    """The agent works on; its completion tears it down without its workflow, and the store knows."""
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    started = await taken(lab, "job-1")
    await lab.handle(warm).terminate()
    await lab.outcomes.complete(warm.agent_id, "r-1", "succeeded", 0)
    await lab.slots.release(warm.agent_id, EndReason.COMPLETED.value, "unknown")
    lab.cloud.live.clear()

    await lab.signal(started, "granted", {"agent_id": started.agent_id})  # look now, not in a minute

    outcome = await lab.outcome(started)
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)


async def test_it_looks_by_itself_when_nobody_says_a_word(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_LOOK", timedelta(seconds=0.2))
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    started = await taken(lab, "job-1")
    await lab.handle(warm).terminate()
    await lab.slots.release(warm.agent_id, EndReason.OPERATOR.value)  # as an operator's `forget` ends it
    lab.cloud.live.clear()

    assert (await lab.outcome(started)).end_reason is EndReason.OPERATOR
    await lab.nothing_left()


async def test_a_warm_agent_that_fell_silent_without_its_workflow_is_reaped(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    started = await taken(lab, "job-1")
    await lab.handle(warm).terminate()
    await lab.db.call("hatchway_instance_beat", {
        "instance_id": "gateway-1", "kind": "gateway", "version": "1", "host_ids": [], "boot_id": None, "silent_s": 45,
    })  # fmt: skip
    await lab.db.fetch_all("update scaler_instances set alive_since = now() - interval '1 hour'")
    await lab.db.fetch_all("update scaler_agent_presence set last_seen_at = now() - interval '10 min'")

    async def nudged() -> bool:
        with contextlib.suppress(RPCError):  # it has ended between two looks, which is what is awaited
            await lab.signal(started, "granted", {"agent_id": started.agent_id})
        return await lab.slots.get(warm.agent_id) is None

    await lab.sweep()
    await until(nudged)
    assert (await lab.failure(started)).error_type == ErrorType.AGENT_LOST
    await lab.nothing_left()


async def test_a_taken_agent_whose_taker_was_terminated_serves_the_next_offer_of_the_job(lab: Lab) -> None:
    """Between the reserve and the bind: the row names a provision that will never bind it."""
    (warm,) = await filled(lab)
    await lab.db.fetch_all(
        """
        update scaler_spawning_agents
           set bound_job_id = 'job-1', bound_by = 'scaler-gone', bound_workflow_id = 'provision/job/job-1',
               bound_first_run_id = 'gone', taken_at = now() - interval '1 hour'
         where agent_id = %(agent_id)s
        """,
        {"agent_id": warm.agent_id},
    )

    started = await taken(lab, "job-1")

    assert (await lab.hatchway.wait_adopted(started)).agent_id == warm.agent_id


async def test_the_sweep_lets_go_of_what_a_gone_provision_had_taken(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await lab.db.fetch_all(
        """
        update scaler_spawning_agents
           set bound_job_id = 'job-1', bound_by = 'scaler-gone', bound_workflow_id = 'provision/job/job-1',
               bound_first_run_id = 'gone', taken_at = now() - interval '1 hour'
         where agent_id = %(agent_id)s
        """,
        {"agent_id": warm.agent_id},
    )

    outcome = await lab.sweep()

    assert outcome.steps["warm pools"].done["let_go"] == 1
    assert [row.agent_id for row in await warm_rows(lab) if row.adopted] == [warm.agent_id]


async def test_a_binding_that_its_workflow_has_taken_on_is_not_given_back(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    given_back = await WarmAgents(lab.db).give_back(started.agent_id)

    assert given_back.bound is not None
    assert given_back.bound.agent_id == warm.agent_id


async def test_a_bind_that_is_repeated_is_the_same_bind(lab: Lab) -> None:
    """Its reply was lost."""
    (warm,) = await filled(lab)
    await taken(lab, "job-1")

    spec = await _bind(lab, warm, "job-1")

    assert (spec.agent_id, spec.job_id) == (warm.agent_id, "job-1")


@pytest.mark.parametrize("job_id", ["job-2", "job-3"], ids=["another job", "nobody's"])
async def test_only_the_job_that_took_it_can_bind_it(lab: Lab, job_id: str) -> None:
    (warm,) = await filled(lab)
    await taken(lab, "job-1")

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await _bind(lab, warm, job_id)

    assert getattr(refused.value.cause, "type", None) == ErrorType.NOT_BOUND


async def test_an_agent_that_was_made_for_a_job_is_bound_to_no_other(lab: Lab) -> None:
    await lab.apply(pooled(size=0))
    cold = await lab.provision(job_id="job-1")
    await lab.reaches(cold, S.AWAITING_ADOPTION)
    await lab.adopt(cold)

    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await _bind(lab, cold, "job-2")

    assert getattr(refused.value.cause, "type", None) == ErrorType.NOT_BOUND


async def _bind(lab: Lab, warm: Started, job_id: str) -> AdoptedSpec:
    spec: AdoptedSpec = await lab.handle(warm).execute_update(
        "bind", BindRequest(agent_id=warm.agent_id, job_id=job_id), result_type=AdoptedSpec
    )
    return spec


async def test_the_page_and_the_list_lead_to_the_agent_that_has_the_job(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")

    status = await lab.status(started)
    rows = [row for row in await lab.slots.list() if row.bound_job_id == "job-1"]

    assert warm.agent_id in status.waiting_for
    assert [row.agent_id for row in rows] == [warm.agent_id]
    assert "job-1" in (await lab.status(warm)).waiting_for


async def test_a_completion_of_an_idle_agent_is_no_job_s(lab: Lab) -> None:
    """It ends by itself in the moment in which a job takes it: the job was not served, and is bound to another."""
    (warm,) = await filled(lab)
    await lab.db.fetch_all(
        """
        update scaler_spawning_agents
           set bound_job_id = 'job-1', bound_by = 'scaler-x', bound_workflow_id = 'x', bound_first_run_id = 'x',
               taken_at = now()
         where agent_id = %(agent_id)s
        """,
        {"agent_id": warm.agent_id},
    )
    await lab.complete(warm)
    await lab.outcome(warm)

    started = await lab.provision(job_id="job-1")

    await lab.reaches(started, S.AWAITING_ADOPTION)
