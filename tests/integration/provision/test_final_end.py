"""A completion cannot be outranked any more: the host that destroys also closes before and releases after."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType

from hatchway.client import Started
from hatchway.errors import HatchwayError, StoreContended, StoreUnreachable
from hatchway.model import EndReason, TeardownState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.states import AT


async def _final_ends(lab: Lab, started: Started) -> list[str | None]:
    """With which end, if any, each teardown was told that it is the last step."""
    return [
        json.loads(scheduled.input.payloads[0].data)["final_end"]
        async for event in lab.handle(started).fetch_history_events()
        if (scheduled := event.activity_task_scheduled_event_attributes).activity_type.name == "teardown"
    ]


async def _markers(lab: Lab, started: Started) -> int:
    """How many steps ran inside workflow tasks."""
    events = [event.event_type async for event in lab.handle(started).fetch_history_events()]
    return events.count(EventType.EVENT_TYPE_MARKER_RECORDED)


async def test_a_completed_agent_is_closed_destroyed_and_released_in_one_step(lab: Lab) -> None:
    started = await AT["active"](lab)

    await lab.complete(started, "failed")
    outcome = await lab.outcome(started)

    assert (outcome.end_reason, outcome.result, outcome.teardown) == ("completed", "failed", TeardownState.CONFIRMED)
    assert await _final_ends(lab, started) == ["completed"]
    assert await _markers(lab, started) == 2  # reserve and adopt
    recorded = await lab.outcomes.get(started.agent_id)
    assert recorded is not None
    assert (recorded.end_reason, recorded.result) == ("completed", "failed")
    assert recorded.closed_at is not None
    await lab.nothing_left()


async def test_an_end_that_a_later_fact_may_outrank_waits_for_the_compute(lab: Lab) -> None:
    started = await AT["active"](lab)
    lab.backend.before_destroy = gate = Gate()
    await lab.exits(started)
    await gate.reached.wait()

    await lab.complete(started)  # committed, and on its way, before the outcome is decided
    await lab.status(started)
    gate.open()

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert await _final_ends(lab, started) == [None]
    await lab.nothing_left()


@pytest.mark.parametrize("error", [StoreUnreachable, StoreContended])
@pytest.mark.parametrize("call", ["close", "release"])
async def test_a_store_that_is_away_in_that_step_is_no_failure_of_the_backend(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str, error: type[HatchwayError]
) -> None:
    """Its first round is not spent on that: the steps are taken one by one, and nothing is handed over."""
    owner = lab.adoption if call == "close" else lab.slots
    real = getattr(owner, call)
    failed = 0

    async def away(*args: Any, **more: Any) -> Any:
        nonlocal failed
        if activity.info().activity_type == "teardown":
            failed += 1
            raise error("by test")
        return await real(*args, **more)

    monkeypatch.setattr(owner, call, away)
    started = await AT["active"](lab)

    await lab.complete(started)
    outcome = await lab.outcome(started)

    assert (outcome.end_reason, outcome.teardown) == (EndReason.COMPLETED, TeardownState.CONFIRMED)
    assert failed == 1
    assert await _final_ends(lab, started) == ["completed", None]
    assert [what for what, _, _ in lab.cloud.log].count("removed") == 1
    await lab.nothing_left()


async def test_a_word_that_it_is_gone_frees_the_slot_while_that_step_hangs(lab: Lab) -> None:
    started = await AT["active"](lab)
    lab.backend.before_destroy = gate = Gate()
    await lab.complete(started)
    await gate.reached.wait()

    await lab.forget(started)
    outcome = await lab.outcome(started)

    assert (outcome.end_reason, outcome.teardown) == (EndReason.COMPLETED, TeardownState.PENDING)
    assert await lab.slots.get(started.agent_id) is None
    assert started.agent_id in lab.cloud.live
    gate.open()
    lab.cloud.live.clear()


async def test_a_slot_is_held_while_that_step_is_refused_by_the_backend(lab: Lab) -> None:
    """Nothing is released before the compute is gone, and nobody can adopt meanwhile."""
    started = await AT["active"](lab)
    lab.backend.before_destroy = gate = Gate()

    await lab.complete(started)
    await gate.reached.wait()
    held = await lab.slots.get(started.agent_id)
    recorded = await lab.outcomes.get(started.agent_id)
    gate.open()
    await lab.outcome(started)

    assert held is not None
    assert held.closing
    assert held.end_reason == "completed"
    assert recorded is not None
    assert recorded.closed_at is None
    await lab.nothing_left()


async def _locked(lab: Lab, agent_id: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Whoever wants to change this row waits until `meanwhile` has ended."""
    async with (
        await psycopg.AsyncConnection.connect(str(lab.db._pool.conninfo)) as other,
        other.transaction(),
    ):
        await other.execute("select from scaler_spawning_agents where agent_id = %s for update", [agent_id])
        await meanwhile()


async def test_an_adoption_in_flight_is_not_overtaken(lab: Lab) -> None:
    """The same process registers again while its completion arrives: whoever asked hears an answer."""
    started = await AT["active"](lab)
    await lab.outcomes.complete(started.agent_id, "r-1", "succeeded", 0)
    adopting: list[asyncio.Task[Any]] = []

    async def events(kind: Any) -> int:
        found = [event.event_type async for event in lab.handle(started).fetch_history_events()]
        return found.count(kind)

    async def meanwhile() -> None:
        adopting.append(asyncio.create_task(lab.adopt(started, instance="gateway-2")))

        async def in_flight() -> bool:
            return bool(
                await lab.db.fetch_value(
                    """
                    select count(*) from pg_stat_activity
                     where wait_event_type = 'Lock' and datname = current_database()
                    """
                )
            )

        await until(in_flight)
        await lab.release(started, EndReason.COMPLETED)

        async def heard() -> bool:
            return await events(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) == 1

        await until(heard)

    await _locked(lab, started.agent_id, meanwhile)
    outcome = await lab.outcome(started)
    await asyncio.gather(*adopting, return_exceptions=True)

    assert outcome.end_reason is EndReason.COMPLETED
    assert await _final_ends(lab, started) == [None]
    assert adopting[0].done()
    await lab.nothing_left()


async def test_a_deadline_holds_over_the_moment_at_which_the_wait_is_worth_a_search_attribute(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.path.PROMPT", timedelta(seconds=0.2))
    started = await lab.provision(job_id="job-1", adoption_timeout=1.0)

    failure = await lab.failure(started)

    assert failure.error_type == "AdoptionTimeout"
    timers = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
        async for event in lab.handle(started).fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]
    assert len(timers) == 2
    assert sum(timers, timedelta()) <= timedelta(seconds=1)
    await lab.nothing_left()


@pytest.mark.parametrize(("prompt", "upserts"), [(60.0, 1), (0.05, 2)])
async def test_only_a_wait_for_the_agent_that_lasts_costs_an_upsert(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, prompt: float, upserts: int
) -> None:
    monkeypatch.setattr("workflows.path.PROMPT", timedelta(seconds=prompt))
    started = await AT["awaiting-adoption"](lab)

    async def timers() -> bool:
        found = [event.event_type async for event in lab.handle(started).fetch_history_events()]
        return found.count(EventType.EVENT_TYPE_TIMER_STARTED) == upserts

    await until(timers)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)

    found = [event.event_type async for event in lab.handle(started).fetch_history_events()]
    assert found.count(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES) == upserts
    await lab.nothing_left()
