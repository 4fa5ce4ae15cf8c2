"""What a sweep does for the line: room that opens by time, grants and waiters that nobody is there for, new plans."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import ProvisionState
from hatchway.store.waiters import Line
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import ScriptedBackend
from tests.support.stack import label_set, laptop

S = ProvisionState
HOUR = timedelta(hours=1)


async def _finish(lab: Lab, *all_started: Started) -> None:
    for started in all_started:
        await lab.reaches(started, S.AWAITING_ADOPTION)
        await lab.adopt(started)
        await lab.complete(started)
        await lab.outcome(started)


async def _waits(lab: Lab, **request: Any) -> Started:
    started = await lab.provision(**request)
    await lab.reaches(started, S.QUEUED)
    return started


async def _age(lab: Lab, table: str, column: str, agent_id: str) -> None:
    await lab.db.fetch_all(
        f"update {table} set {column} = {column} - interval '1 hour' where agent_id = %(a)s",  # noqa: S608
        {"a": agent_id},
    )


async def _age_line(lab: Lab) -> None:
    await lab.db.fetch_all("update scaler_waiters set enqueued_at = enqueued_at - interval '1 hour'")


async def _two_wait_for_one_slot(lab: Lab) -> tuple[Started, Started, Started]:
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    return holder, await _waits(lab, job_id="job-1"), await _waits(lab, job_id="job-2")


async def test_a_sweep_with_nothing_to_do_says_so(lab: Lab) -> None:
    outcome = await lab.sweep()

    assert outcome.failed == {}
    assert outcome.steps["line"].done == {"handed_over": 0, "given_back": 0, "replanned": 0, "left": 0}


async def test_a_grant_whose_signal_was_lost_is_signalled_again(lab: Lab) -> None:
    """Whoever freed the slot was killed between its commit and its signal."""
    holder, waiting, last = await _two_wait_for_one_slot(lab)
    await lab.adopt(holder)
    # The store alone, as a worker that is killed after it: nobody is signalled.
    await lab.slots.release(holder.agent_id, "released")
    await lab.db.fetch_all("update scaler_spawning_agents set notified_at = now() - interval '1 min'")

    outcome = await lab.sweep()

    assert outcome.steps["line"].done["handed_over"] == 1
    await lab.release(holder, now=True)
    await _finish(lab, waiting, last)
    await lab.nothing_left()


async def test_a_grant_of_a_workflow_id_that_another_start_has_is_given_back(lab: Lab) -> None:
    """Its signal reaches the other start, so it is never answered "not found"."""
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    dead = await _waits(lab, workflow_id="provision/adhoc/one")
    await lab.handle(dead).terminate("by test")
    again = await _waits(lab, workflow_id="provision/adhoc/one")
    await lab.adopt(holder)
    await lab.complete(holder)
    await lab.outcome(holder)
    await _age(lab, "scaler_spawning_agents", "spawned_at", dead.agent_id)

    outcome = await lab.sweep()

    assert outcome.steps["line"].done["given_back"] == 1
    await _finish(lab, again)
    await lab.nothing_left()


async def test_a_waiter_whose_workflow_is_gone_leaves_the_line_once_its_time_is_up(lab: Lab) -> None:
    holder, dead, alive = await _two_wait_for_one_slot(lab)
    await lab.handle(dead).terminate("by test")
    await lab.db.fetch_all("update scaler_waiters set deadline_at = now() - interval '1 hour'")

    outcome = await lab.sweep()

    assert outcome.steps["line"].done["left"] == 1
    assert [waiter.agent_id for waiter in await Line(lab.db).list()] == [alive.agent_id]
    await _finish(lab, holder, alive)
    await lab.nothing_left()


async def test_a_dead_head_of_the_line_holds_nobody_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants more room than there is, so its turn does not come; and nobody may overtake it while it lives."""
    monkeypatch.setattr("activities.sweep.HEAD_PATIENCE", timedelta(minutes=30))
    await lab.apply(laptop(maxAgents=9, resourceCap={"cpus": 4}))
    holder = await lab.provision(job_id="holder", resources={"cpus": 1})
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    dead = [await _waits(lab, job_id=f"dead-{n}", resources={"cpus": 4}) for n in range(2)]
    small = await _waits(lab, job_id="small", resources={"cpus": 1})
    for one in dead:
        await lab.handle(one).terminate("by test")
    fresh = await lab.sweep()
    still = len(await Line(lab.db).list())
    await _age_line(lab)

    swept = await lab.sweep()

    assert (fresh.steps["line"].done["left"], still) == (0, 3)
    assert swept.steps["line"].done["left"] == 2
    await _finish(lab, small, holder)
    await lab.nothing_left()


async def test_a_head_of_the_line_that_lives_keeps_its_place(lab: Lab) -> None:
    holder, first, second = await _two_wait_for_one_slot(lab)
    await _age_line(lab)

    swept = await lab.sweep()

    assert swept.steps["line"].done["left"] == 0
    assert [waiter.agent_id for waiter in await Line(lab.db).list()] == [first.agent_id, second.agent_id]
    await _finish(lab, holder, first, second)
    await lab.nothing_left()


async def test_a_step_that_fails_fails_the_pass_with_its_reason(lab: Lab) -> None:
    await lab.db.fetch_all("alter function hatchway_pump_all(jsonb) rename to hatchway_away")

    with pytest.raises(WorkflowFailureError) as failure:
        await lab.sweep()

    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == ErrorType.SWEEP_FAILED
    assert "line" in failure.value.cause.message


# ── new plans ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_waiters_move_to_a_scaler_that_an_apply_adds(lab: Lab) -> None:
    """Both are told; whoever plans first has the new slot, and the other keeps its place on the old scaler."""
    holder, first, second = await _two_wait_for_one_slot(lab)
    lab.start_host(ScriptedBackend(lab.cloud, host="host-2"), scaler="second")
    config = laptop(maxAgents=1)
    config["scalers"].append(
        {**config["scalers"][0], "name": "second", "labelSets": [label_set("linux", "true", excludeLabels=["never"])]}
    )

    await lab.apply(config)
    outcome = await lab.sweep()

    assert outcome.failed == {}
    await until(lambda: len(lab.cloud.live) == 2)
    moved, stays = (first, second) if first.agent_id in lab.cloud.live else (second, first)
    assert (await lab.reaches(moved, S.AWAITING_ADOPTION)).scaler == "second"
    await until(lambda: _planned_under(lab, 3))
    waiting = await Line(lab.db).place(stays.agent_id)
    assert waiting is not None
    assert waiting.position == 1
    await _finish(lab, holder, stays, moved)
    await lab.nothing_left()


async def test_a_waiter_that_nothing_matches_any_more_is_declined_by_the_sweep(lab: Lab) -> None:
    holder, first, second = await _two_wait_for_one_slot(lab)

    # As if the apply had more waiters than it tells itself.
    await lab.db.fetch_all("update scaler_waiters set told_at = now() + interval '1 min'")
    await lab.apply(laptop(maxAgents=1, labelSets=[label_set("other")]))
    await lab.db.fetch_all("update scaler_waiters set told_at = null")
    outcome = await lab.sweep()

    assert outcome.steps["line"].done["replanned"] == 2
    for waiting in (first, second):
        assert (await lab.failure(waiting)).error_type == ErrorType.NO_MATCHING_SCALER
    await _finish(lab, holder)
    await lab.nothing_left()


async def test_nobody_overtakes_a_waiter_that_is_not_planned_anew_yet(lab: Lab) -> None:
    holder, first, second = await _two_wait_for_one_slot(lab)

    await lab.apply(laptop(maxAgents=1, spawnTimeoutSeconds=200))
    newcomer = await _waits(lab, job_id="newcomer")
    await _finish(lab, holder, first, second, newcomer)

    order = [agent for what, agent, _ in lab.cloud.log if what == "created"]
    assert order == [started.agent_id for started in (holder, first, second, newcomer)]
    await lab.nothing_left()


async def test_a_waiter_that_an_apply_does_not_touch_waits_on_quietly(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few events for each apply, and none for a sweep after it."""
    monkeypatch.setattr("workflows.steps.LOCAL_LIMIT", timedelta(seconds=60))  # or a slow step is one more task
    holder, first, second = await _two_wait_for_one_slot(lab)
    before = await until(lambda: _events_at_rest(lab, first))

    await lab.apply(laptop(maxAgents=1, spawnTimeoutSeconds=200))
    await lab.sweep()
    await until(lambda: _planned_under(lab, 3))
    after = await until(lambda: _events_at_rest(lab, first))
    await lab.sweep()
    await lab.sweep()

    assert 0 < after - before <= 12
    assert (await lab.handle(first).describe()).history_length == after
    await _finish(lab, holder, first, second)
    await lab.nothing_left()


async def _events_at_rest(lab: Lab, started: Started) -> int | None:
    """How long its history is while it does nothing: what a step has done can be seen before its task has ended."""
    described = await lab.handle(started).describe()
    busy = described.raw_description.HasField("pending_workflow_task") or described.raw_description.pending_activities
    return None if busy else described.history_length


async def _planned_under(lab: Lab, version: int) -> bool:
    return await lab.db.fetch_all("select distinct config_version from scaler_waiters") == [(version,)]
