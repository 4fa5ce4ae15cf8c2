"""`hatchway doctor`: what is not as it should be, where, and what to do. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.doctor_workflows import provisions, workflows
from hatchway.cli.failures import ExitCode
from hatchway.cli.findings import Finding
from hatchway.cli.output import JsonOption, cell, counted, emit

if TYPE_CHECKING:
    from temporalio.client import Client

    from hatchway.store.pool import Database

LATE_GRANT = timedelta(minutes=2)
"""Two sweeps have gone by that would have given it back or signalled it."""

WAITERS_LOOKED_AT = 200
"""The first in the line: each costs a call to Temporal."""


def doctor(json: JsonOption = False) -> int:
    """Compare what admission counts with what is there, and see that the schedules run and the queues are polled.

    Exit code 1 when something is wrong; each finding says what, where, and what to do.
    """
    checked, findings = run_async(_doctor())
    if json:
        emit({"ok": not findings, "checked": checked, "findings": [asdict(f) for f in findings]}, json_wanted=True)
    else:
        for check in checked:
            wrong = [f for f in findings if f.check == check]
            print(f"{check}: {'ok' if not wrong else len(wrong)}")
            for finding in wrong:
                print(f"  {cell(finding.what)}\n    where: {cell(finding.where)}\n    do:    {cell(finding.todo)}")
    return ExitCode.FAILED if findings else ExitCode.DONE


async def _doctor() -> tuple[list[str], list[Finding]]:
    async with database() as db, hatchway_client() as client:
        findings = []
        for check in CHECKS.values():
            findings += [finding async for finding in check(db, client.temporal)]
        return list(CHECKS), findings


async def _namespace(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.tie import NamespaceTie, Tie

    tie = NamespaceTie(db, temporal)
    found = await tie.look()
    if found is not Tie.HERE:
        what = "nothing is reclaimed" if found is Tie.NONE_YET else "workers do not start, and nothing is reaped"
        yield Finding("namespace", what, f"namespace {temporal.namespace}", tie.words(found))


async def _counters(db: Database, _temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.store.audit import Audit

    audit = Audit(db)
    for wrong in await audit.miscounts():
        names = ("agents", "millicpu", "bytes")
        off = [
            f"{counted} {name} counted, {reserved} reserved"
            for name, counted, reserved in zip(names, wrong.counted, wrong.reserved, strict=True)
            if counted != reserved
        ]
        yield Finding(
            "counters", ", ".join(off), f"scaler_capacity, scope {wrong.scope}",
            "Somebody has written to these tables by hand, or a trigger is missing: compare with scaler_reservations, "
            "correct the counters in one transaction that holds the admission lock, and report it.",
        )  # fmt: skip
    for agent_id in await audit.slots_without_reservation():
        yield Finding(
            "counters", "an agent holds a slot that no cap counts", f"agent {agent_id}",
            f"See `hatchway show {agent_id}`; once it has ended, all is well again.",
        )  # fmt: skip


async def _grants(db: Database, _temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.store.audit import Audit

    for late in await Audit(db).late_grants(LATE_GRANT):
        yield Finding(
            "grants", f"a slot was handed over {round(late.age.total_seconds())} s ago, and nobody has taken it up",
            f"scaler {late.scaler}, agent {late.agent_id}, workflow {late.workflow_id}",
            "Is a worker up, and does the sweep run? It signals such a workflow, or gives its slot back.",
        )  # fmt: skip


async def _waiters(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.liveness import workflow_is_gone
    from hatchway.store.waiters import Line

    for waiter in await Line(db).list(WAITERS_LOOKED_AT):
        if await workflow_is_gone(temporal, waiter.workflow_id, waiter.first_run_id):
            yield Finding(
                "waiters", "it stands in the line, and its workflow has closed or is gone",
                f"agent {waiter.agent_id}, workflow {waiter.workflow_id}, waits for {', '.join(waiter.scalers)}",
                "Nothing: the sweep takes it out when it is the head, which others wait for, or past its deadline. "
                "Somebody has terminated it: cancel provisions instead.",
            )  # fmt: skip


async def _schedules(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.schedules import look_at_schedules
    from hatchway.store.audit import Audit

    for found in await look_at_schedules(temporal, await Audit(db).hosts()):
        where = f"namespace {temporal.namespace}, schedule {found.id}"
        if found.missing:
            todo = "Start a worker on that host: it makes it." if found.of_host else "Run `hatchway setup`."
            yield Finding("schedules", "the schedule is missing", where, todo)
        elif found.paused:
            note = f": {found.note}" if found.note else ""
            yield Finding(
                "schedules", f"the schedule is paused{note}", where,
                f"`temporal schedule toggle --unpause --schedule-id {found.id} --reason …` when it may run again.",
            )  # fmt: skip
        elif found.late and found.running:
            yield Finding(
                "schedules", f"a run of it has been going for {round(found.idle.total_seconds())} s, and no other "
                "begins meanwhile", f"{where}, workflow {found.running}",
                "Is a worker up (see queues)? Terminate that run if it is wedged: the next one does its work.",
            )  # fmt: skip
        elif found.late:
            yield Finding(
                "schedules", f"it is late: its last run began {round(found.idle.total_seconds())} s ago, and it runs "
                f"every {round(found.every.total_seconds())} s", where,
                "Temporal starts it by itself: look at the server. `temporal schedule trigger --schedule-id "
                f"{found.id}` runs it once.",
            )  # fmt: skip
        elif error := await _failure(temporal, found.last):
            yield Finding(
                "schedules", f"its last run failed: {error}", where, "The next one tries again; repair what it says.",
            )  # fmt: skip


async def _failure(temporal: Client, run: tuple[str, str] | None) -> str | None:
    """What a run failed with; None when it did not, or is still under way."""
    from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
    from temporalio.service import RPCError, RPCStatusCode

    if run is None:
        return None
    handle = temporal.get_workflow_handle(run[0], run_id=run[1])
    try:
        if (await handle.describe()).status is not WorkflowExecutionStatus.FAILED:
            return None
        await handle.result()
    except WorkflowFailureError as e:
        return str(e.cause)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:  # past retention: the schedule is late, or its runs are rare
            raise
    return None


async def _queues(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.polling import is_polled, missing_build
    from hatchway.store.audit import Audit
    from hatchway.store.waiters import Line
    from hatchway.task_queues import CONTROL, host_queue, spawn_queue

    audit = Audit(db)
    wanted = {CONTROL: ("no worker polls it", "Start a worker: nothing goes on without one.")}
    for scaler in await Line(db).scalers():
        wanted[spawn_queue(scaler)] = (
            f"nobody polls the spawn queue of scaler {scaler}",
            f"Start a worker that reaches the backend of scaler {scaler}, or drain it.",
        )
    held, reached = await audit.agents_by_host(), await audit.live_hosts()
    for host, agents in held.items():
        wanted[host_queue(host)] = (
            f"nobody polls host {host}: {counted(agents, 'agent')} of it hold{'s' if agents == 1 else ''} a slot",
            f"Start a worker on host {host}: it confirms that they are gone. If the host is gone for good: `hatchway "
            "cancel AGENT`, then `hatchway forget AGENT`, for each of them.",
        )
    silent = {host_queue(host) for host in held.keys() - reached}
    for queue, (what, todo) in wanted.items():
        # The server remembers who polled for five minutes; a worker's own heartbeat stays away within a minute.
        if queue in silent or not await is_polled(temporal, queue):
            yield Finding("queues", what, f"task queue {queue}", todo)
    if missing := await missing_build(temporal, CONTROL, await audit.live_workers()):
        yield Finding(
            "queues", f"no worker gets workflows: {missing}", f"task queue {CONTROL}",
            "`temporal worker deployment set-current-version` to a build whose workers are up, or start workers of the "
            "current one.",
        )  # fmt: skip


async def _reaper(db: Database, _temporal: Client) -> AsyncIterator[Finding]:
    from hatchway.config.current import CurrentConfig
    from hatchway.reaping import Windows
    from hatchway.store.audit import Audit
    from hatchway.store.config_versions import ConfigVersions
    from hatchway.store.reaping import Reaping

    for row in await Audit(db).untimely():
        columns = ", ".join(row.columns)
        yield Finding(
            "reaper", f"nothing can be reckoned by its {columns}: whom that concerns is spared, whatever else is known",
            f"{row.table}, {row.key}",
            f"Somebody has written that by hand: set {columns} of this row to a time (`now()`), and the reaper judges "
            "by it again.",
        )  # fmt: skip
    versions = ConfigVersions(db)
    if await versions.current() is None:
        return  # nothing has ever been provisioned
    _, config = await CurrentConfig(versions).current()
    sight = await Reaping(db).sight(Windows.of(config.reaper))
    if sight.blocked:
        since = f"alive since {cell(sight.gateway_since)} only" if sight.gateway_since else "none is alive"
        yield Finding(
            "reaper", f"it is blind: {counted(sight.unseen, 'silent agent')} spared, as no gateway has been alive for "
            f"the flap grace ({since})", "scaler_instances, kind gateway",
            "Start a gateway that these agents can reach. The reaper judges them again once one has been alive for "
            f"{config.reaper.flap_grace_seconds} s.",
        )  # fmt: skip
    for agent_id in sight.unknown:
        yield Finding(
            "reaper", "nobody knows its owner, its gateway or its workflow: it was moved over from elsewhere",
            f"agent {agent_id}", f"See that its machine is gone, then `hatchway forget {agent_id}`.",
        )  # fmt: skip


CHECKS: dict[str, Callable[[Database, Client], AsyncIterator[Finding]]] = {
    "namespace": _namespace,
    "counters": _counters,
    "grants": _grants,
    "waiters": _waiters,
    "provisions": provisions,
    "workflows": workflows,
    "reaper": _reaper,
    "schedules": _schedules,
    "queues": _queues,
}
