"""Doctor on who polls, and on what runs by the clock."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from hatchway import schedules
from hatchway.cli.findings import Finding
from hatchway.model import SweepRequest
from hatchway.schedules import SWEEP, Scheduled, make_schedules
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.states import AT, let_go

Look = Callable[[str], Awaitable[list[Finding]]]
HOUR = timedelta(hours=1)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scheduled], None]:
    """Makes this the only schedule that Hatchway has."""

    def make(scheduled: Scheduled) -> None:
        monkeypatch.setattr(schedules, "ALL", (scheduled,))

    return make


async def test_a_host_whose_worker_is_silent_is_named_with_how_many_hold_a_slot(lab: Lab, look: Look) -> None:
    """Temporal goes on to name the poller for minutes."""
    started = await AT["active"](lab)
    well = await look("queues")
    await lab.db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 minute'")

    (finding,) = await look("queues")

    assert well == []
    assert finding.what == "nobody polls host host-1: 1 agent of it holds a slot"
    assert "hatchway forget" in finding.todo
    await let_go(lab, started)


async def test_a_scaler_whose_spawn_queue_nobody_polls_is_named(lab: Lab, look: Look) -> None:
    async def all_polled() -> bool:  # the server learns of a worker's pollers a moment after its start
        return await look("queues") == []

    await until(all_polled)
    await lab.db.fetch_all("insert into scaler_capacity (scope, scaler_name) values ('scaler:unserved', 'unserved')")

    (finding,) = await look("queues")

    assert finding.what == "nobody polls the spawn queue of scaler unserved"
    assert finding.where == "task queue hatchway.spawn.unserved"


async def test_a_schedule_that_runs_in_time_is_not_mentioned(
    lab: Lab, look: Look, only: Callable[[Scheduled], None]
) -> None:
    only(SWEEP)
    await make_schedules(lab.temporal)
    await lab.temporal.get_schedule_handle(SWEEP.id).trigger()

    assert await look("schedules") == []


async def test_a_schedule_that_has_not_run_three_times_over_is_late(
    lab: Lab, look: Look, only: Callable[[Scheduled], None]
) -> None:
    rare = replace(SWEEP, every=HOUR)
    only(rare)
    await make_schedules(lab.temporal)
    only(replace(rare, every=timedelta(milliseconds=1)))

    finding = await until(lambda: _first(look))

    assert "it is late: its last run began" in finding.what
    assert f"--schedule-id {SWEEP.id}" in finding.todo


async def test_a_run_that_does_not_end_is_named_for_no_other_begins(
    lab: Lab, look: Look, only: Callable[[Scheduled], None]
) -> None:
    nobody = replace(SWEEP, workflow="NoSuchWorkflow", id=f"hatchway/{uuid.uuid4().hex}", every=HOUR)
    only(nobody)
    await make_schedules(lab.temporal)
    await lab.temporal.get_schedule_handle(nobody.id).trigger()
    only(replace(nobody, every=timedelta(milliseconds=1)))

    async def said() -> Finding | None:
        return next((f for f in await look("schedules") if "has been going for" in f.what), None)

    finding = await until(said)

    assert f"workflow {nobody.workflow_id}-" in finding.where
    await lab.temporal.get_workflow_handle(finding.where.rpartition("workflow ")[2]).terminate("by test")


async def test_a_run_that_failed_is_told_with_what_it_failed_with(
    lab: Lab, look: Look, only: Callable[[Scheduled], None]
) -> None:
    class Wrong(SweepRequest):
        nonsense: int = 1

    failing = replace(SWEEP, request=Wrong(), every=HOUR)
    only(failing)
    await make_schedules(lab.temporal)
    await lab.temporal.get_schedule_handle(failing.id).trigger()

    finding = await until(lambda: _first(look))

    assert finding.what.startswith("its last run failed: ")
    assert "nonsense" in finding.what


async def _first(look: Look) -> Finding | None:
    return next(iter(await look("schedules")), None)
