"""Doctor's look at provisions: which are stuck, on what, and where rows and workflows disagree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hatchway.cli.findings import Finding
from hatchway.cli.output import counted

if TYPE_CHECKING:
    from temporalio.client import Client

    from hatchway.store.audit import Stuck
    from hatchway.store.pool import Database

OVERDUE = timedelta(minutes=2)
"""After its deadline: two sweeps. Its workflow acts on the deadline itself, within moments."""

CLOSING = timedelta(minutes=5)
"""The first round of a teardown is 30 s and the stop grace, which is minutes at most."""

YOUNG = timedelta(minutes=2)
"""A workflow before its row, a row before its workflow is listed: neither says anything yet."""

FAILING_TASK = 3
"""The attempt of a workflow task from which on it is a bug and not a worker that died."""

LOOKED_AT = 5000
"""Open workflows; beyond, only the first are compared, and doctor says so."""


@dataclass(frozen=True)
class Work:
    """A workflow, as far as it matters to somebody who waits for it."""

    open: bool
    failing: bool = False
    """Its own code fails: a bug."""
    error: str | None = None
    """The last failure of a step that is under way."""


async def provisions(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    """Who has stood for too long where they stand, why, and what to do."""
    from hatchway.store.audit import Audit

    audit = Audit(db)
    stuck = await audit.stuck(OVERDUE, CLOSING)
    reached = await audit.live_hosts() if stuck else set()
    for agent in stuck:
        own = await look_at(temporal, agent.workflow_id, agent.first_run_id)
        teardown = await look_at(temporal, f"teardown/{agent.agent_id}", None)
        cause, todo = why(agent, own, teardown, reached)
        since = f"closing for {_for(agent.since)}" if agent.state == "closing" else f"overdue for {_for(agent.since)}"
        yield Finding("provisions", f"{since}: {cause}", _where(agent), todo)


def why(agent: Stuck, own: Work, teardown: Work, reached: set[str]) -> tuple[str, str]:
    """The cause and what to do, most telling first."""
    show = f"hatchway show {agent.agent_id}"
    if own.failing or teardown.failing:
        failing = f"teardown/{agent.agent_id}" if teardown.failing else agent.workflow_id
        return (
            f"the code of its workflow fails: a bug, or a worker of an older release ({failing})",
            "Its workflow in Temporal's UI shows where. It holds its slot, and goes on once the workers are repaired.",
        )
    if not own.open and not teardown.open:
        if agent.state == "closing":
            return (
                "neither its workflow nor its teardown is open",
                "Nothing, if the sweep runs (see schedules): within two sweeps it starts the teardown.",
            )
        return (
            "its workflow is gone, which somebody has terminated",
            "Nothing, if the sweep runs (see schedules): it ends the agent after the flap grace. `hatchway reap "
            "--dry-run` says when.",
        )
    if agent.host_id is not None and agent.host_id not in reached:
        return (
            f"nobody polls host {agent.host_id}",
            f"Start a worker on host {agent.host_id}. If the host is gone for good: "
            + ("" if agent.state == "closing" else f"`hatchway cancel {agent.agent_id}`, then ")
            + f"`hatchway forget {agent.agent_id}`, which frees its slot.",
        )
    if error := teardown.error or own.error:
        return (
            f"its last attempt failed: {error}",
            f"Repair what that says; it is tried again by itself. `{show}` shows more.",
        )
    return "its workflow has not acted", f"`{show}` says what it waits for. Is a worker up (see queues)?"


async def workflows(db: Database, temporal: Client) -> AsyncIterator[Finding]:
    """Where rows and workflows disagree, and workflows that a bug keeps from going on."""
    from hatchway.liveness import workflow_is_gone
    from hatchway.store.audit import Audit

    audit = Audit(db)
    now = datetime.now(UTC)
    # Workflows first: whoever gets a row meanwhile is then known.
    provisioning: set[str] = set()
    teardowns: set[str] = set()
    old: list[str] = []
    more = False
    query = 'ExecutionStatus = "Running" AND WorkflowType IN ("ProvisionWorkflow", "TeardownWorkflow")'
    async for execution in temporal.list_workflows(query, limit=LOOKED_AT + 1):
        if len(provisioning) + len(teardowns) == LOOKED_AT:
            more = True
            break
        (provisioning if execution.workflow_type == "ProvisionWorkflow" else teardowns).add(execution.id)
        if now - execution.start_time > YOUNG:
            old.append(execution.id)
    accounted_for = await audit.known_workflows() | {f"teardown/{agent}" for agent in await audit.agents()}
    for workflow_id in old:
        if workflow_id in accounted_for:
            continue
        if not (await look_at(temporal, workflow_id, None)).open:  # the list lags
            continue
        if workflow_id in provisioning:
            yield Finding(
                "workflows", "it is open, and has neither a slot nor a place in the line", f"workflow {workflow_id}",
                f"`hatchway show {workflow_id}` says what it waits for; `hatchway cancel {workflow_id}` ends it. After "
                "a restored backup: reclaim gives it its row back.",
            )  # fmt: skip
        else:
            yield Finding(
                "workflows", "a teardown goes on for an agent that holds no slot", f"workflow {workflow_id}",
                f"Its host confirms it, or `hatchway forget {workflow_id.removeprefix('teardown/')}` ends it.",
            )  # fmt: skip
    if more:
        yield Finding(
            "workflows", f"more than {LOOKED_AT} workflows are open: only so many were compared",
            f"namespace {temporal.namespace}", "Look again when there are fewer; the reaper compares all of them.",
        )  # fmt: skip
    else:
        for row in await audit.orphans(provisioning, YOUNG):
            if await workflow_is_gone(temporal, row.workflow_id, row.first_run_id):
                yield Finding(
                    "workflows", f"it is {row.state}, and its workflow is gone", f"agent {row.agent_id}, workflow "
                    f"{row.workflow_id}", "Nothing, if the sweep runs: it ends the agent once it is silent for the "
                    "flap grace, and a busy one not before. Cancel provisions instead of terminating them.",
                )  # fmt: skip
    wedged = [
        execution.id
        async for execution in temporal.list_workflows(
            'ExecutionStatus = "Running" AND TemporalReportedProblems IS NOT NULL', limit=100
        )
    ]
    if wedged:
        yield Finding(
            "workflows", f"a bug keeps {counted(len(wedged), 'workflow')} from going on", ", ".join(wedged[:10]),
            "Each in Temporal's UI shows where. They hold their slots, and go on once the workers are repaired.",
        )  # fmt: skip


async def look_at(temporal: Client, workflow_id: str | None, first_run_id: str | None) -> Work:
    """The workflow under this id; closed where another start stands there. `first_run_id` None: whichever it is."""
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError, RPCStatusCode

    from hatchway.converter import failure_words
    from hatchway.liveness import RPC_LIMIT

    if workflow_id is None:
        return Work(open=False)
    try:
        found = await temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Work(open=False)
    raw = found.raw_description
    other = first_run_id is not None and raw.workflow_execution_info.first_run_id != first_run_id
    if found.status is not WorkflowExecutionStatus.RUNNING or other:
        return Work(open=False)
    errors = [
        await failure_words(temporal.data_converter, step.last_failure)
        for step in raw.pending_activities
        if step.HasField("last_failure")
    ]
    return Work(
        open=True,
        failing=raw.HasField("pending_workflow_task") and raw.pending_workflow_task.attempt >= FAILING_TASK,
        error=errors[-1] if errors else None,
    )


def _where(agent: Stuck) -> str:
    host = f", host {agent.host_id}" if agent.host_id else ""
    return f"agent {agent.agent_id}, scaler {agent.scaler}, {agent.state}{host}"


def _for(age: timedelta) -> str:
    return (
        f"{round(age.total_seconds())} s" if age < timedelta(minutes=10) else f"{round(age.total_seconds() / 60)} min"
    )
