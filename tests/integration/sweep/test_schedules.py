"""The sweep's schedule: made once, kept as it should be, and never two passes at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecutionStatus,
)
from temporalio.common import RawValue
from temporalio.worker import Worker

from hatchway.model import SweepOutcome, SweptStep
from hatchway.schedules import PURGE, RUN_LIMIT, SWEEP, Made, look_at_schedules, make_schedules
from hatchway.task_queues import CONTROL
from tests.support.lab import Lab
from tests.support.namespaces import Namespaces, until
from workflows.sweep import SweepWorkflow


@pytest.fixture
async def empty(namespaces: Namespaces) -> AsyncIterator[Client]:
    """A namespace of its own; its schedules do not outlive the test."""
    client = await namespaces.take()
    yield client
    async for schedule in await client.list_schedules():
        await client.get_schedule_handle(schedule.id).delete()


async def test_setup_makes_the_schedule_once(empty: Client) -> None:
    before = await look_at_schedules(empty)
    first, second = await make_schedules(empty), await make_schedules(empty)
    after = await look_at_schedules(empty)

    assert [found.missing for found in before] == [True, True]
    assert first == {SWEEP.id: Made.CREATED, PURGE.id: Made.CREATED}
    assert second == {SWEEP.id: Made.UNCHANGED, PURGE.id: Made.UNCHANGED}
    assert [(found.missing, found.paused) for found in after] == [(False, False), (False, False)]
    for made, every in ((SWEEP, timedelta(seconds=60)), (PURGE, timedelta(minutes=5))):
        described = await empty.get_schedule_handle(made.id).describe()
        assert described.schedule.spec.intervals == [ScheduleIntervalSpec(every=every)]
        assert described.schedule.policy.overlap is ScheduleOverlapPolicy.SKIP
        assert described.schedule.policy.catchup_window == timedelta(minutes=5)
        action = described.schedule.action
        assert isinstance(action, ScheduleActionStartWorkflow)
        assert action.execution_timeout == RUN_LIMIT  # or one that wedges would have all later ones skipped


async def test_a_schedule_that_was_changed_is_put_right_and_stays_paused(empty: Client) -> None:
    await make_schedules(empty)
    handle = empty.get_schedule_handle(SWEEP.id)

    async def hourly_and_overlapping(there: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = there.description.schedule
        schedule.spec.intervals = [ScheduleIntervalSpec(every=timedelta(hours=1))]
        schedule.policy.overlap = ScheduleOverlapPolicy.ALLOW_ALL
        return ScheduleUpdate(schedule)

    await handle.update(hourly_and_overlapping)
    await handle.pause(note="maintenance")

    made = await make_schedules(empty)
    again = await make_schedules(empty)
    found = next(one for one in await look_at_schedules(empty) if one.id == SWEEP.id)
    described = await handle.describe()

    assert (made[SWEEP.id], again[SWEEP.id]) == (Made.UPDATED, Made.UNCHANGED)
    assert (found.paused, found.note) == (True, "maintenance")
    assert described.schedule.spec.intervals == [ScheduleIntervalSpec(every=timedelta(seconds=60))]
    assert described.schedule.policy.overlap is ScheduleOverlapPolicy.SKIP


async def test_a_triggered_schedule_runs_a_sweep_that_shows_what_it_did(lab: Lab) -> None:
    await make_schedules(lab.temporal)
    schedule = lab.temporal.get_schedule_handle(SWEEP.id)
    await schedule.pause()

    await schedule.trigger()
    (ran,) = await until(lambda: _runs(lab.temporal))
    await schedule.delete()
    await lab.temporal.get_schedule_handle(PURGE.id).delete()

    assert ran.startswith("sweep-")
    outcome = await lab.temporal.get_workflow_handle(ran, result_type=SweepOutcome).result()
    assert outcome.failed == {}
    assert "line" in outcome.steps


@pytest.mark.scenario("S12")
async def test_passes_never_overlap_however_often_two_schedulers_ask_for_one(empty: Client) -> None:
    """Its steps hang; setup has been run twice, and every trigger meanwhile is skipped."""
    passes: set[str] = set()
    gate = asyncio.Event()

    @activity.defn(dynamic=True)
    async def hangs(_ask: Sequence[RawValue]) -> SweptStep:
        passes.add(str(activity.info().workflow_id))
        while not gate.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return SweptStep()

    await asyncio.gather(make_schedules(empty), make_schedules(empty))
    schedule = empty.get_schedule_handle(SWEEP.id)
    await schedule.pause()  # only this test's triggers, not the clock

    async with Worker(empty, task_queue=CONTROL, workflows=[SweepWorkflow], activities=[hangs]):
        await schedule.trigger()
        await until(lambda: passes)
        for skipped in range(1, 4):
            await asyncio.gather(schedule.trigger(), empty.get_schedule_handle(SWEEP.id).trigger())
            await until(lambda: _skipped(empty, skipped))  # noqa: B023 - awaited before the next round
        gate.set()
        await until(lambda: _all_are_complete(empty))

    assert len(passes) == 1


async def _runs(temporal: Client) -> list[str]:
    described = await temporal.get_schedule_handle(SWEEP.id).describe()
    actions = [run.action for run in described.info.recent_actions]
    return [action.workflow_id for action in actions if isinstance(action, ScheduleActionExecutionStartWorkflow)]


async def _skipped(temporal: Client, number: int) -> bool:
    described = await temporal.get_schedule_handle(SWEEP.id).describe()
    return described.info.num_actions_skipped_overlap >= number


async def _all_are_complete(temporal: Client) -> bool:
    states = [(await temporal.get_workflow_handle(run).describe()).status for run in await _runs(temporal)]
    return all(state is WorkflowExecutionStatus.COMPLETED for state in states)


@pytest.mark.parametrize(
    ("limit", "next_one_runs"), [(timedelta(seconds=2), True), (None, False)], ids=["as it is", "without a limit"]
)
async def test_a_pass_that_wedges_is_ended_by_its_run_limit_and_the_next_one_begins(
    empty: Client, monkeypatch: pytest.MonkeyPatch, *, limit: timedelta | None, next_one_runs: bool
) -> None:
    """Nobody polls here, so a pass that has begun never ends by itself; without its limit it blocks all later ones."""
    monkeypatch.setattr("hatchway.schedules.RUN_LIMIT", limit)
    await make_schedules(empty)
    schedule = empty.get_schedule_handle(SWEEP.id)
    await schedule.pause()
    await schedule.trigger()
    (first,) = await until(lambda: _runs(empty))

    if next_one_runs:
        await until(lambda: _is(empty, first, WorkflowExecutionStatus.TIMED_OUT))
        await until(lambda: _nothing_runs(empty))
        await schedule.trigger()
        await until(lambda: _began(empty, 2))
    else:
        await schedule.trigger()
        await until(lambda: _skipped(empty, 1))
        assert await _is(empty, first, WorkflowExecutionStatus.RUNNING)
        await empty.get_workflow_handle(first).terminate("by test")


async def _is(temporal: Client, run: str, status: WorkflowExecutionStatus) -> bool:
    return (await temporal.get_workflow_handle(run).describe()).status is status


async def _nothing_runs(temporal: Client) -> bool:
    return not (await temporal.get_schedule_handle(SWEEP.id).describe()).info.running_actions


async def _began(temporal: Client, number: int) -> bool:
    return len(await _runs(temporal)) == number
