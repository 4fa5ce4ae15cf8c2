"""A completion cannot be outranked any more: the host that destroys also closes before and releases after."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError, RPCStatusCode

from hatchway import waking
from hatchway.client import Started
from hatchway.errors import HatchwayError, StoreContended, StoreUnreachable
from hatchway.model import EndReason, ScaleDownReason, TeardownOutcome, TeardownRequest, TeardownState
from hatchway.store.pool import Database
from hatchway.task_queues import CONTROL
from tests.support.lab import Lab
from tests.support.lab_worker import DiskCloud, Fleet
from tests.support.namespaces import Namespaces, until
from tests.support.postgres_fixtures import PostgresServer
from tests.support.scripted import Gate, ScriptedBackend
from tests.support.stack import laptop
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


@pytest.mark.usefixtures("unhurried")
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


# ── after its commit ────────────────────────────────────────────────────────────────────────────────────────────


def _asked_to_destroy(lab: Lab) -> int:
    return sum(what == "asked to destroy" for what, _, _ in lab.cloud.log)


def _lose_the_reply(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    release = lab.slots.release

    async def lost(*args: Any, **more: Any) -> Any:
        released = await release(*args, **more)
        if activity.info().activity_type == "teardown":
            raise StoreUnreachable("the reply is lost")
        return released

    monkeypatch.setattr(lab.slots, "release", lost)


def _fail_to_tell(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    left = times

    async def fails(temporal: Any, slots: Any, grants: Any) -> int:
        nonlocal left
        if activity.info().activity_type == "teardown" and left:
            left -= 1
            raise RPCError("by test", RPCStatusCode.UNAVAILABLE, b"")
        return await waking.wake(temporal, slots, grants)

    monkeypatch.setattr("activities.releasing.wake", fails)


@pytest.mark.parametrize(
    "fault", ["the reply is lost", "whom to tell is away", "whom to tell is away for the whole round"]
)
async def test_what_has_been_released_is_not_destroyed_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Its row is gone, and with it what it knew of where the compute was and who made it."""
    round_s = 8 if "whole round" in fault else 60  # it has to be long enough for the release to be reached
    monkeypatch.setattr("workflows.taking_down.FIRST_ROUND", timedelta(seconds=round_s))
    monkeypatch.setattr("workflows.taking_down.STORE_ALLOWANCE", timedelta())
    await lab.apply(laptop(stopGraceSeconds=0))
    started = await AT["active"](lab)
    if fault == "the reply is lost":
        _lose_the_reply(lab, monkeypatch)
    else:
        _fail_to_tell(monkeypatch, times=1000 if "whole" in fault else 1)

    await lab.complete(started, "failed")
    outcome = await lab.outcome(started)

    assert (outcome.end_reason, outcome.result, outcome.teardown) == ("completed", "failed", TeardownState.CONFIRMED)
    assert _asked_to_destroy(lab) == 1
    assert await _final_ends(lab, started) == ["completed"]
    with pytest.raises(RPCError, match="not found"):
        await lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}").describe()
    await lab.nothing_left()


async def test_a_teardown_of_what_has_been_released_destroys_nothing(lab: Lab) -> None:
    """Whoever started it was told of the agent before its own workflow had ended it."""
    started = await AT["active"](lab)
    row = await lab.slots.get(started.agent_id)
    await lab.complete(started)
    await lab.outcome(started)
    assert row is not None
    assert row.teardown_facts is not None

    request = TeardownRequest(
        agent_id=started.agent_id, facts=row.teardown_facts, reason=ScaleDownReason.JOB_COMPLETE,
        end_reason=EndReason.COMPLETED,
    )  # fmt: skip
    outcome: TeardownOutcome = await lab.temporal.execute_workflow(
        "TeardownWorkflow", request, id=f"teardown/{started.agent_id}", task_queue=CONTROL,
        result_type=TeardownOutcome,
    )  # fmt: skip

    assert outcome.teardown is TeardownState.CONFIRMED
    assert _asked_to_destroy(lab) == 1


async def test_a_worker_killed_after_the_release_leaves_nothing_to_destroy_again(
    namespaces: Namespaces, postgres: PostgresServer, tmp_path: Path
) -> None:
    dsn = postgres.database()
    async with Database.open(dsn) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(DiskCloud(tmp_path)))
        await lab.apply(laptop())
        fleet = Fleet(lab, dsn, tmp_path)
        try:
            doomed = await fleet.start("host-1", "after_release")
            started = await AT["active"](lab)
            await lab.complete(started)
            await until((tmp_path / "reached-after_release").exists)

            os.kill(doomed.pid, signal.SIGKILL)
            await doomed.wait()
            await fleet.start("host-1")
            outcome = await lab.outcome(started)

            assert (outcome.end_reason, outcome.teardown) == (EndReason.COMPLETED, TeardownState.CONFIRMED)
            assert len(fleet.effects("asked")) == 1
            await lab.nothing_left()
        finally:
            await fleet.stop()


# ── a database that is slow ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_slow_release_is_no_failed_round(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the database takes is not the backend's: the compute is gone, and nothing is handed over."""
    monkeypatch.setattr("workflows.taking_down.FIRST_ROUND", timedelta(seconds=1))
    await lab.apply(laptop(stopGraceSeconds=0))
    started = await AT["active"](lab)
    release = lab.slots.release

    async def slow(*args: Any, **more: Any) -> Any:
        if activity.info().activity_type == "teardown":
            await asyncio.sleep(1.5)
        return await release(*args, **more)

    monkeypatch.setattr(lab.slots, "release", slow)
    await lab.complete(started)
    outcome = await lab.outcome(started)

    assert outcome.teardown is TeardownState.CONFIRMED
    assert await _final_ends(lab, started) == ["completed"]
    await lab.nothing_left()


@pytest.mark.parametrize("call", ["close", "release"])
async def test_a_database_that_hangs_in_that_step_is_what_the_page_waits_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("activities.teardown.STORE_LIMIT", timedelta(seconds=0.3))
    started = await AT["active"](lab)
    owner = lab.adoption if call == "close" else lab.slots
    real, answers = getattr(owner, call), asyncio.Event()

    async def hangs(*args: Any, **more: Any) -> Any:
        await answers.wait()
        return await real(*args, **more)

    monkeypatch.setattr(owner, call, hangs)
    await lab.complete(started)

    async def waits_for_it() -> bool:
        return "the database" in (await lab.status(started)).waiting_for

    async def page_that_says_so() -> str | None:
        page = str(await lab.handle(started).query("__temporal_workflow_metadata"))
        return page if "**waits for** the database" in page else None

    await until(waits_for_it, what="a status that names the database")
    # Between two failed calls the page speaks of the step that is under way.
    page = await until(page_that_says_so, what="a page that names the database")
    answers.set()
    outcome = await lab.outcome(started)

    assert "Bring the database back" in page
    assert outcome.teardown is TeardownState.CONFIRMED
    assert await _final_ends(lab, started) == ["completed", None]
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
    started = await lab.provision(job_id="job-1", adoption_timeout=6.0)

    failure = await lab.failure(started)

    assert failure.error_type == "AdoptionTimeout"
    timers = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
        async for event in lab.handle(started).fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]
    assert len(timers) == 2
    assert sum(timers, timedelta()) <= timedelta(seconds=6)
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
