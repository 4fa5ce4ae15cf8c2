"""Silence, whoever it is that is silent: agents, their gateways, all gateways, workflows, and signals that got lost."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from hatchway.reaping import Windows
from hatchway.store.presence import Beat, Presence
from hatchway.store.reaping import Reaping
from tests.integration.reap.facts import aged, gateway, heard_at, quick, reaped, redeemed, silent, state_of, terminated
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import laptop
from tests.support.states import AT

S = ProvisionState


async def _busy(lab: Lab, job_id: str = "job-1", **request: Any) -> Started:
    started = await lab.provision(job_id=job_id, **request)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.reaches(started, S.ACTIVE)
    return started


@pytest.fixture
async def usual(lab: Lab) -> Lab:
    """The windows that an installation has when it says nothing."""
    await lab.apply(laptop())
    await gateway(lab.db)
    return lab


async def _finishes(lab: Lab, started: Started) -> None:
    await lab.complete(started)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


# ── agents ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scenario("S44")
@pytest.mark.parametrize("seconds", [60, 119, 600])
async def test_a_silence_that_its_workflow_can_wait_out_does_nothing(usual: Lab, seconds: float) -> None:
    started = await _busy(usual)
    await silent(usual.db, seconds)

    done = await reaped(usual)

    assert done == {}
    assert await state_of(usual, started) == "active"
    beaten = await Presence(usual.db).beat("gateway-1", [(started.agent_id, "r-1")])
    assert beaten[started.agent_id].answer is Beat.OK
    await _finishes(usual, started)


@pytest.mark.scenario("S08", "S24")
async def test_an_agent_that_was_ended_from_outside_is_lost_and_its_slot_is_free_in_one_pass(usual: Lab) -> None:
    started = await _busy(usual)
    usual.cloud.live.clear()
    await silent(usual.db, 1800)

    done = await reaped(usual)
    failure = await usual.failure(started)

    assert done == {"condemned": 1}
    assert failure.error_type == ErrorType.AGENT_LOST
    assert "heartbeat" in str(failure)
    await usual.nothing_left()


@pytest.mark.scenario("S23")
async def test_of_many_busy_agents_only_those_that_are_gone_are_torn_down(lab: Lab) -> None:
    """A flag that an agent is busy, or is not, plays no part."""
    await lab.apply(laptop(maxAgents=12))
    await gateway(lab.db)
    agents = [await _busy(lab, f"job-{n}") for n in range(12)]
    await silent(lab.db, 1800, agents[3].agent_id, agents[7].agent_id)

    done = await reaped(lab)
    for lost in (agents[3], agents[7]):
        await lab.failure(lost)
    again = await reaped(lab)

    assert (done, again) == ({"condemned": 2}, {})
    removed = {agent for what, agent, _ in lab.cloud.log if what == "removed"}
    assert removed == {agents[3].agent_id, agents[7].agent_id}
    for n, started in enumerate(agents):
        if n not in (3, 7):
            await lab.complete(started)
            assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


# ── gateways ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_gateway_that_dies_loses_nobody_who_registers_at_another(usual: Lab) -> None:
    started = await _busy(usual)
    await gateway(usual.db, "gateway-1", silent_for=300)
    await gateway(usual.db, "gateway-2")
    await silent(usual.db, 100)
    before = await reaped(usual)
    await usual.adopt(started, "r-1", "gateway-2")

    after = await reaped(usual)

    assert (before, after) == ({}, {})
    row = await usual.slots.get(started.agent_id)
    assert row is not None
    assert row.adopted_by == "gateway-2"
    await _finishes(usual, started)


async def test_an_agent_that_did_not_come_over_to_the_other_gateway_is_lost(usual: Lab) -> None:
    started, came_over = await _busy(usual), await _busy(usual, "job-2")
    await redeemed(usual.db)
    await gateway(usual.db, "gateway-1", silent_for=300)
    await gateway(usual.db, "gateway-2", alive_for=120)
    await silent(usual.db, 300, started.agent_id)
    await heard_at(usual.db, "gateway-2", came_over)

    done = await reaped(usual)

    assert done == {"condemned": 1}
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    await usual.complete(came_over)
    await usual.outcome(came_over)
    await usual.nothing_left()


async def test_without_any_gateway_the_reaper_is_blind_says_so_and_comes_back_by_itself(usual: Lab) -> None:
    """It stands down for agents that somebody would have had to hear; the others it goes on to judge."""
    started = await _busy(usual)
    never_came = await usual.provision(job_id="job-2")
    await usual.reaches(never_came, S.AWAITING_ADOPTION)
    await usual.handle(never_came).terminate()
    await aged(usual.db, "spawned_at", 7200, never_came.agent_id)
    await usual.apply(quick())
    await gateway(usual.db, silent_for=4000)
    await silent(usual.db, 4000)
    await until(lambda: _closed_for(usual, never_came, 1))

    blind = await reaped(usual)
    sight = await Reaping(usual.db).sight(Windows())
    await until(lambda: never_came.agent_id not in usual.cloud.live)
    await gateway(usual.db, alive_for=0)
    newly_alive = await Reaping(usual.db).sight(Windows())
    await gateway(usual.db, alive_for=120)
    sees = await Reaping(usual.db).sight(Windows())
    done = await reaped(usual)

    assert blind == {"blocked": 1, "condemned": 1}
    assert (sight.blocked, sight.unseen, sight.gateway_since) == (True, 1, None)
    assert newly_alive.blocked
    assert (sees.blocked, sees.unseen) == (False, 0)
    assert done == {"condemned": 1}
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    await usual.nothing_left()


async def _closed_for(lab: Lab, started: Started, seconds: float) -> bool:
    closed = (await lab.handle(started).describe()).close_time
    return bool(
        await lab.db.fetch_value("select now() - %(at)s > make_interval(secs => %(s)s)", {"at": closed, "s": seconds})
    )


# ── workflows ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_condemnation_whose_signal_was_lost_is_told_again_by_the_next_pass(usual: Lab) -> None:
    """Whoever condemned was killed between its commit and its signal."""
    started = await _busy(usual)
    await silent(usual.db, 1800)
    await _condemned_without_a_word(usual)
    standing = (await usual.status(started)).state

    done = await reaped(usual)

    assert standing is S.ACTIVE
    assert done == {"told_again": 1}
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    await usual.nothing_left()


async def _condemned_without_a_word(lab: Lab) -> None:
    """The store alone."""
    row = await lab.db.fetch_one("select agent_id, state_version from scaler_spawning_agents")
    assert row is not None
    await lab.db.call(
        "hatchway_condemn",
        {
            "agents": [{"agent_id": row[0], "state_version": row[1], "end_reason": "heartbeat-timeout", "absent_s": 1}],
            "flap_grace_s": 1,
            "silent_s": 45,
        },
    )


async def test_a_condemned_agent_of_a_stuck_workflow_is_torn_down_after_the_re_attempt(usual: Lab) -> None:
    """Its workflow hears nothing: a row that has been closing for so long gets a teardown of its own."""
    started = await _busy(usual)
    await silent(usual.db, 1800)
    await _condemned_without_a_word(usual)
    await aged(usual.db, "closing_at", 601, started.agent_id)

    done = await reaped(usual)
    await usual.nothing_left()

    assert done == {"seen_to": 1}
    outcome = await usual.outcomes.get(started.agent_id)
    assert outcome is not None
    assert outcome.end_reason == "heartbeat-timeout"
    await usual.condemn(started)  # mended at last
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST


@pytest.mark.scenario("S34")
async def test_a_completion_whose_signal_was_lost_is_told_again(usual: Lab) -> None:
    started = await _busy(usual)
    await usual.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)

    done = await reaped(usual)

    assert done == {"told_again": 1}
    outcome = await usual.outcome(started)
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, "succeeded")
    await usual.nothing_left()


async def test_a_workflow_that_did_not_act_on_its_deadline_is_told_to_end(usual: Lab) -> None:
    started = await AT["awaiting-adoption"](usual)
    await aged(usual.db, "deadline_at", 121, started.agent_id)

    done = await reaped(usual)

    assert done == {"condemned": 1}
    assert (await usual.failure(started)).error_type == ErrorType.ADOPTION_TIMEOUT
    await usual.nothing_left()


async def test_a_spawn_that_waits_for_its_turn_is_not_taken_for_a_workflow_that_does_not_act(usual: Lab) -> None:
    usual.backend.before_create = gate = Gate()
    started = await usual.provision(job_id="job-1")
    await gate.reached.wait()
    await aged(usual.db, "deadline_at", 9999, started.agent_id)

    done = await reaped(usual)
    gate.open()

    assert done == {}
    await usual.reaches(started, S.AWAITING_ADOPTION)
    await usual.adopt(started)
    await _finishes(usual, started)


async def test_a_step_of_the_store_that_fails_for_ever_is_not_taken_for_acting(usual: Lab) -> None:
    """It is tried for as long as it fails, so nothing but the reaper would ever end what its row holds."""
    given = usual.slots.reserve

    async def breaks_after_its_effect(*asked: Any, **more: Any) -> Any:
        await given(*asked, **more)
        raise ValueError("what this answers cannot be read")

    usual.slots.reserve = breaks_after_its_effect  # type: ignore[method-assign]
    started = await usual.provision(job_id="job-1")

    async def tried_again() -> bool:
        pending = (await usual.handle(started).describe()).raw_description.pending_activities
        return any(step.attempt > 1 for step in pending)

    await until(tried_again)
    await aged(usual.db, "deadline_at", 9999, started.agent_id)

    done = await reaped(usual)
    usual.slots.reserve = given  # type: ignore[method-assign]

    assert done == {"condemned": 1}
    await usual.failure(started)
    await usual.nothing_left()


@pytest.mark.parametrize("state", ["awaiting-adoption", "active"])
async def test_a_workflow_that_was_reset_is_neither_gone_nor_does_it_make_a_second_agent(lab: Lab, state: str) -> None:
    await gateway(lab.db)
    started = await AT[state](lab)
    moved = await lab.reset(started)
    await lab.reaches(moved, S.AWAITING_ADOPTION, S.ACTIVE)
    await aged(lab.db, "spawned_at", 5, started.agent_id)
    if state == "active":
        await silent(lab.db, 5)

    done = await reaped(lab)

    assert done == {}
    assert lab.cloud.created(started.agent_id) == 1
    await lab.adopt(moved)
    await _finishes(lab, moved)


# ── whose nobody knows ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_whose_owner_nobody_knows_is_spared_and_shown(usual: Lab) -> None:
    """As rows that were moved over from elsewhere have it."""
    await usual.db.fetch_all(
        "insert into scaler_spawning_agents (agent_id, scaler_name, state, spawned_at, deadline_at) "
        "values ('moved', 'laptop', 'spawned', now() - interval '9 days', now() - interval '8 days')"
    )

    first, second = await reaped(usual), await reaped(usual)

    assert first == second == {"unknown": 1}
    assert (await Reaping(usual.db).sight(Windows())).unknown == ["moved"]
    await usual.db.fetch_all("delete from scaler_spawning_agents")


# ── another namespace ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_copy_of_a_database_reaps_nothing_in_another_namespace_and_says_so(lab: Lab) -> None:
    """To it, every workflow of the original is gone."""
    await gateway(lab.db)
    started = await AT["active"](lab)
    await terminated(lab, started)
    await silent(lab.db, 5)
    await lab.db.fetch_all("update hatchway_installation set namespace_uuid = 'another', tied_at = now()")

    with pytest.raises(WorkflowFailureError) as failure:
        await lab.sweep()

    assert "another Temporal namespace" in str(failure.value.cause)
    assert await state_of(lab, started) == "active"
    await lab.db.fetch_all("update hatchway_installation set namespace_uuid = null, tied_at = null")
    await lab.sweep()
    await lab.nothing_left()


# ── one agent's trouble ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_row_that_cannot_be_read_keeps_nobody_else_from_being_seen_to_and_fails_the_pass(lab: Lab) -> None:
    """As a hand in the database leaves it, or a newer release."""
    await gateway(lab.db)
    broken, other = await _busy(lab, "job-1"), await _busy(lab, "job-2")
    for started in (broken, other):
        await terminated(lab, started)
    await silent(lab.db, 5)
    await lab.db.fetch_all(
        "update scaler_spawning_agents set compute = '{\"odd\": 1}' where agent_id = %(a)s", {"a": broken.agent_id}
    )

    with pytest.raises(WorkflowFailureError) as failure:
        await lab.sweep()
    await until(lambda: other.agent_id not in lab.cloud.live)

    assert f"agent {broken.agent_id}" in str(failure.value.cause)
    assert other.agent_id not in str(failure.value.cause)
    await lab.db.fetch_all("update scaler_spawning_agents set compute = null")
    await lab.sweep()
    await lab.nothing_left()
