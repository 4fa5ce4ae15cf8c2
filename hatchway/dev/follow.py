"""One provision as it happens: each fact with its time, from the database and from the workflow."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from hatchway.client import HatchwayClient, Started
from hatchway.model import ProvisionState, ProvisionStatus
from hatchway.store.pool import Database
from hatchway.store.slots import Slots, SpawnRow
from hatchway.store.timeline import Timeline, timeline

S = ProvisionState
LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Moment:
    """Something has happened, `at` that time by the clock of whoever recorded it."""

    at: datetime
    what: str
    detail: str = ""


async def follow(db: Database, client: HatchwayClient, started: Started) -> AsyncIterator[Moment]:
    """Every moment of the provision, as soon as it is known, until its workflow has closed and its slot is free."""
    told: set[str] = set()
    closed = False
    while True:
        # The workflow first: whatever it has left behind, the database knows by now.
        status = await _status(client, started)
        facts = await timeline(db, started.agent_id)
        known = _facts(facts, await Slots(db).get(started.agent_id)) + _stages(status, facts.reserved_at)
        if closed:
            known += await _torn_down(client, started, facts.closed_at)
            known += [Moment(facts.closed_at, "slot free")] if facts.closed_at else []
        for moment in sorted(known, key=lambda m: m.at):
            if moment.what not in told:
                told.add(moment.what)
                yield moment
        if closed:
            return
        closed = await _closed(client, started)
        if not closed:
            await asyncio.sleep(LOOK_EVERY_S)


def _facts(known: Timeline, row: SpawnRow | None) -> list[Moment]:
    scaler = f"scaler {row.scaler}" if row else ""
    through = f"through {row.adopted_by}" if row and row.adopted_by else ""
    moments = [
        (known.reserved_at, "slot reserved", scaler),
        (known.redeemed_at, "claim redeemed", ""),
        (known.adopted_at, "registered and adopted", through),
        (known.completed_at, "job done", ""),
    ]
    return [Moment(at, what, detail) for at, what, detail in moments if at is not None]


def _stages(status: ProvisionStatus | None, reserved_at: datetime | None) -> list[Moment]:
    """What only the workflow knows: when it left the stage that it had entered for this.

    A workflow's clock stands still within a task: what it did there after the reservation may be stamped before it.
    """
    moments = []
    stages = status.stages if status else []
    for entry, following in itertools.pairwise(stages):
        if (entry.state, following.state) == (S.RESOLVING, S.SPAWNING):
            moments.append(Moment(max(following.since, reserved_at or following.since), "auth resolved"))
        elif entry.state is S.SPAWNING and following.state in (S.AWAITING_ADOPTION, S.ACTIVE):
            where = f"{status.compute.ref} on {status.compute.host_id}" if status and status.compute else ""
            moments.append(Moment(following.since, "agent process spawned", where))
    return moments


async def _status(client: HatchwayClient, started: Started) -> ProvisionStatus | None:
    try:
        return await client.status(started.workflow_id)
    except RPCError:  # no worker has taken it up yet; the next look asks again
        return None


async def _torn_down(client: HatchwayClient, started: Started, freed_at: datetime | None) -> list[Moment]:
    """When the backend confirmed that the compute is gone: the end of the teardown activity, or, where that has freed
    the slot as well, before it did.
    """
    handle = client.temporal.get_workflow_handle(started.workflow_id, run_id=started.run_id)
    scheduled: set[int] = set()
    moments = []
    async for event in handle.fetch_history_events():
        if event.activity_task_scheduled_event_attributes.activity_type.name == "teardown":
            scheduled.add(event.event_id)
        done = event.activity_task_completed_event_attributes
        if done.scheduled_event_id in scheduled:
            ended_at = event.event_time.ToDatetime(UTC)
            moments.append(Moment(min(ended_at, freed_at or ended_at), "torn down"))
    return moments


async def _closed(client: HatchwayClient, started: Started) -> bool:
    handle = client.temporal.get_workflow_handle(started.workflow_id, run_id=started.run_id)
    return (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING
