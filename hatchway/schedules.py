"""The schedules of a namespace: which workflows run by the clock, and how often. `hatchway setup` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from hatchway.converter import encoded_as_now
from hatchway.model import Payload, PurgeRequest, ReclaimRequest, SweepRequest
from hatchway.task_queues import CONTROL

RPC_LIMIT = timedelta(seconds=10)

PREFIX = "hatchway/"

CATCH_UP = timedelta(minutes=5)
"""After an outage: older runs that were missed say nothing that the next one does not."""


RUN_LIMIT = timedelta(minutes=15)
"""Longer than any pass takes. One that a bug keeps from going on would otherwise have the schedule skip all later ones;
a pass that is ended has nothing to clean up."""


@dataclass(frozen=True)
class Scheduled:
    """A workflow that runs by the clock. Runs that would overlap are skipped: there is one at a time in the cluster."""

    id: str
    workflow: str
    request: Payload
    every: timedelta
    summary: str

    @property
    def workflow_id(self) -> str:
        """The server appends the time."""
        return self.id.removeprefix(PREFIX)

    def schedule(self) -> Schedule:
        """What the server is asked for."""
        return Schedule(
            action=ScheduleActionStartWorkflow(
                self.workflow,
                self.request,
                id=self.workflow_id,
                task_queue=CONTROL,
                execution_timeout=RUN_LIMIT,
                static_summary=self.summary,
            ),
            spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=self.every)]),
            policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
        )


SWEEP = Scheduled(
    id="hatchway/sweep",
    workflow="SweepWorkflow",
    request=SweepRequest(),
    every=timedelta(seconds=60),
    summary="one pass over all agents, the waiting line and the warm pools",
)

PURGE = Scheduled(
    id="hatchway/purge",
    workflow="PurgeWorkflow",
    request=PurgeRequest(),
    every=timedelta(minutes=5),
    summary="deletes what is spent and past its retention",
)

ALL = (SWEEP, PURGE)


def reclaim_of(host_id: str) -> Scheduled:
    """One for each host. The workers that poll the host's queue make it; a pass that finds nobody there, and nothing
    of the host on record, deletes it.
    """
    return Scheduled(
        id=f"{PREFIX}reclaim/{host_id}",
        workflow="ReclaimWorkflow",
        request=ReclaimRequest(host_id=host_id),
        every=timedelta(minutes=5),
        summary=f"compute on host {host_id} that nobody answers for",
    )


class Made(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Found:
    """A schedule as the server has it. `missing`: it has none of that id."""

    id: str
    missing: bool = False
    paused: bool = False
    note: str | None = None
    every: timedelta = timedelta(0)
    idle: timedelta = timedelta(0)
    """Since its last run began; since it was made or changed, where none has yet."""
    running: str | None = None
    """The workflow of a run that is still under way."""
    last: tuple[str, str] | None = None
    """Workflow id and run id of the last run."""

    @property
    def late(self) -> bool:
        """Three runs are missing."""
        return not self.missing and not self.paused and self.idle > 3 * self.every

    @property
    def of_host(self) -> bool:
        """Made by the host's workers, not by `hatchway setup`."""
        return self.id.startswith(reclaim_of("").id)


async def make_schedules(temporal: Client) -> dict[str, Made]:
    """Create what is missing, update what is not as it should be. An operator's pause stays. Safe to repeat."""
    return {scheduled.id: await _make(temporal, scheduled) for scheduled in ALL}


async def make_reclaim_schedule(temporal: Client, host_id: str) -> Made:
    """As `make_schedules`, for one host."""
    return await _make(temporal, reclaim_of(host_id))


async def delete_reclaim_schedule(temporal: Client, host_id: str) -> None:
    """Of a host that is gone. A pass that runs goes on."""
    try:
        await temporal.get_schedule_handle(reclaim_of(host_id).id).delete(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise


async def look_at_schedules(temporal: Client, hosts: Iterable[str] = ()) -> list[Found]:
    """Whether each is there, those of these hosts too, and whether somebody has paused it."""
    found = []
    for scheduled in (*ALL, *map(reclaim_of, hosts)):
        try:
            described = await temporal.get_schedule_handle(scheduled.id).describe(rpc_timeout=RPC_LIMIT)
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            found.append(Found(scheduled.id, missing=True))
        else:
            found.append(_found(scheduled, described))
    return found


def _found(scheduled: Scheduled, described: ScheduleDescription) -> Found:
    state, info = described.schedule.state, described.info
    runs = [run.action for run in info.recent_actions if isinstance(run.action, ScheduleActionExecutionStartWorkflow)]
    running = [run for run in info.running_actions if isinstance(run, ScheduleActionExecutionStartWorkflow)]
    began = [run.started_at for run in info.recent_actions] + [info.created_at]
    began += [info.last_updated_at] if info.last_updated_at else []
    return Found(
        scheduled.id,
        paused=state.paused,
        note=state.note,
        every=scheduled.every,
        idle=datetime.now(UTC) - max(began),
        running=running[0].workflow_id if running else None,
        last=(runs[-1].workflow_id, runs[-1].first_execution_run_id) if runs else None,
    )


async def _make(temporal: Client, scheduled: Scheduled) -> Made:
    wanted = scheduled.schedule()
    try:
        await temporal.create_schedule(scheduled.id, wanted, rpc_timeout=RPC_LIMIT)
    except ScheduleAlreadyRunningError:
        pass  # the rest of this function sees to it
    else:
        return Made.CREATED
    made = Made.UNCHANGED

    async def changed(there: ScheduleUpdateInput) -> ScheduleUpdate | None:
        nonlocal made
        if await _is_as_wanted(temporal, there.description, scheduled):
            made = Made.UNCHANGED
            return None
        made = Made.UPDATED
        wanted.state = there.description.schedule.state
        return ScheduleUpdate(wanted)

    await temporal.get_schedule_handle(scheduled.id).update(changed, rpc_timeout=RPC_LIMIT)
    return made


async def _is_as_wanted(temporal: Client, description: ScheduleDescription, scheduled: Scheduled) -> bool:
    """Only what we set is compared: the server fills in the rest."""
    there, wanted = description.schedule, scheduled.schedule()
    if not isinstance(there.action, ScheduleActionStartWorkflow):
        return False
    return (
        (there.action.workflow, there.action.id, there.action.task_queue, there.action.execution_timeout)
        == (scheduled.workflow, scheduled.workflow_id, CONTROL, RUN_LIMIT)
        and await encoded_as_now(temporal.data_converter, there.action.args, [scheduled.request])
        and there.spec.intervals == wanted.spec.intervals
        and not (there.spec.calendars or there.spec.cron_expressions or there.spec.skip)
        and (there.policy.overlap, there.policy.catchup_window) == (wanted.policy.overlap, wanted.policy.catchup_window)
    )
