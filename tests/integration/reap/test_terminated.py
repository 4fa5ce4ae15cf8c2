"""Workflows that were terminated, which runs no cleanup: a sweep ends what they left behind, and nobody who lives."""

from __future__ import annotations

import pytest

from hatchway.model import EndReason, ProvisionState, ScaleDownReason
from hatchway.store.presence import Beat, Presence
from tests.integration.reap.facts import aged, gateway, silent, state_of, terminated
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import laptop
from tests.support.states import AT, let_go

S = ProvisionState


@pytest.mark.scenario("S13", "S14", "S34")
@pytest.mark.parametrize("state", [state for state in AT if state != "queued"])
async def test_what_a_terminated_workflow_held_is_free_within_two_sweeps(lab: Lab, state: str) -> None:
    await gateway(lab.db)
    started = await AT[state](lab)
    await terminated(lab, started)
    await silent(lab.db, 5)

    first = await lab.sweep()
    await let_go(lab, started)
    second = await lab.sweep()

    assert (first.failed, second.failed) == ({}, {})
    await lab.nothing_left()
    outcome = await lab.outcomes.get(started.agent_id)
    assert outcome is not None
    assert outcome.closed_at is not None
    expected = {
        "active": EndReason.HEARTBEAT_TIMEOUT, "tearing-down": EndReason.COMPUTE_EXITED,
    }.get(state, EndReason.ADOPTION_TIMEOUT)  # fmt: skip
    assert outcome.end_reason == expected
    assert (outcome.condemned_reason is None) == (state == "tearing-down")


async def test_a_terminated_waiter_holds_nothing_and_is_out_of_the_line_after_its_deadline(lab: Lab) -> None:
    started = await AT["queued"](lab)
    await terminated(lab, started)
    await lab.db.fetch_all("update scaler_waiters set deadline_at = now() - interval '1 h'")

    await lab.sweep()

    assert await lab.slots.waiting(started.agent_id) is None
    assert await lab.slots.get(started.agent_id) is None
    await let_go(lab, started)
    await lab.nothing_left()


@pytest.mark.scenario("S23")
async def test_a_busy_agent_that_lives_is_not_killed_for_its_workflow_and_ends_with_its_completion(lab: Lab) -> None:
    await lab.apply(laptop())  # the usual windows: a pass may come long after the heartbeat that it goes by
    started = await AT["active"](lab)
    await terminated(lab, started)

    for _ in range(3):
        await gateway(lab.db)
        await silent(lab.db, 500)
        beaten = await Presence(lab.db).beat("gateway-1", [(started.agent_id, "r-1")])
        assert beaten[started.agent_id].answer is Beat.OK
        swept = await lab.sweep()
        assert swept.steps["reap"].done["condemned"] == 0
    assert await state_of(lab, started) == "active"
    await lab.outcomes.complete(started.agent_id, "r-1", "failed", 3)
    told = await lab.sweep()

    assert told.steps["reap"].done["told_again"] == 1
    await lab.nothing_left()
    outcome = await lab.outcomes.get(started.agent_id)
    assert outcome is not None
    assert (outcome.end_reason, outcome.result) == ("completed", "failed")


async def test_an_agent_that_stays_away_after_its_workflow_is_torn_down_once_the_grace_has_passed(lab: Lab) -> None:
    await gateway(lab.db)
    started = await AT["active"](lab)
    await terminated(lab, started)
    await silent(lab.db, -3600)  # heard of, however long a pass takes
    spared = await lab.sweep()
    standing = await state_of(lab, started)
    await silent(lab.db, 1.1)

    condemned = await lab.sweep()

    assert (spared.steps["reap"].done["condemned"], standing) == (0, "active")
    assert condemned.steps["reap"].done["condemned"] == 1
    await lab.nothing_left()


async def test_a_teardown_that_was_terminated_too_is_begun_again(lab: Lab) -> None:
    started = await AT["tearing-down"](lab)
    await terminated(lab, started)
    await lab.sweep()
    teardown = lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}")
    await teardown.terminate("by test")
    held = await state_of(lab, started)

    swept = await lab.sweep()
    again = await lab.sweep()
    await let_go(lab, started)

    assert held == "closing"
    assert swept.steps["reap"].done["seen_to"] == 1
    assert again.steps["reap"].done["seen_to"] == 0  # somebody is at it
    await lab.nothing_left()


async def test_a_job_that_was_done_ends_as_completed_also_where_its_workflow_is_gone(lab: Lab) -> None:
    """The agent has said so, and has been silent since: it ended by itself, and was not lost."""
    await gateway(lab.db)
    started = await AT["active"](lab)
    await lab.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)
    await terminated(lab, started)
    await silent(lab.db, 5)

    swept = await lab.sweep()
    await lab.nothing_left()

    outcome = await lab.outcomes.get(started.agent_id)
    assert outcome is not None
    assert (outcome.end_reason, outcome.result) == ("completed", "succeeded")
    assert outcome.condemned_reason is None
    assert swept.steps["reap"].done["condemned"] == 0
    assert lab.backend.reasons[started.agent_id] is ScaleDownReason.JOB_COMPLETE


async def test_a_job_is_offered_again_while_its_lost_agent_is_reaped(lab: Lab) -> None:
    """The same workflow id, another start: that one hears nothing of the agent before it."""
    await gateway(lab.db)
    first = await AT["active"](lab)
    await terminated(lab, first)
    await silent(lab.db, 5)
    await lab.sweep()
    await until(lambda: first.agent_id not in lab.cloud.live)
    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, S.AWAITING_ADOPTION)
    await aged(lab.db, "spawned_at", 5, second.agent_id)

    swept = await lab.sweep()

    assert first.workflow_id == second.workflow_id
    assert swept.steps["reap"].done["condemned"] == 0
    await lab.adopt(second)
    await lab.complete(second)
    assert (await lab.outcome(second)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()
