"""`hatchway show AGENT`: everything that a person asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatchway.cli.agents import AgentArgument, listed
from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.output import JsonOption, emit

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecutionDescription

    from hatchway.cli.targets import Target
    from hatchway.client import HatchwayClient
    from hatchway.store.rows import OutcomeRow, SpawnRow


def show(agent: AgentArgument, json: JsonOption = False) -> None:
    """Say what an agent is doing, since when, for whom it waits, and what can be done."""
    emit(run_async(_show(agent)), json_wanted=json)


async def _show(agent: str) -> dict[str, Any]:
    from hatchway.cli.targets import find

    async with database() as db, hatchway_client() as client:
        target = await find(agent, db, client)
        said: dict[str, Any] = {"agent_id": target.agent_id, "workflow_id": target.workflow_id}
        if target.row:
            said["slot"] = listed(target.row)
            said["compute"] = target.row.compute
        if target.outcome:
            said["outcome"] = _ended(target.outcome)
        return said | await _workflow(target, client)


async def _workflow(target: Target, client: HatchwayClient) -> dict[str, Any]:
    """What Temporal knows: how it ended, or where it stands in its own words."""
    from temporalio.client import WorkflowExecutionStatus

    from hatchway.client import agent_id_of
    from hatchway.links import workflow_url

    if target.workflow_id is None:
        return {"next_step": "Nothing: its workflow is past retention."}
    described = await client.temporal.get_workflow_handle(target.workflow_id).describe()
    current = agent_id_of(described.raw_description)
    if current != target.agent_id:
        return {"next_step": f"{_left_over(target.row)} Its job was offered again, and has agent {current} now."}
    said: dict[str, Any] = {
        "ui_url": workflow_url(client.temporal, target.workflow_id, described.run_id),
        "workflow_status": described.status.name.lower() if described.status else None,
    }
    if described.status is WorkflowExecutionStatus.RUNNING:
        return said | await _standing(target, client)
    return said | {
        "state": "closed",
        "since": described.close_time,
        "failure": await _failure(described, client),
        "next_step": _left_over(target.row),
    }


async def _standing(target: Target, client: HatchwayClient) -> dict[str, Any]:
    """The status that the workflow answers, if a worker is there to have it answered."""
    from temporalio.service import RPCError, RPCStatusCode

    nobody = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.FAILED_PRECONDITION)
    try:
        status = await client.status(target.workflow())
    except RPCError as e:
        if e.status not in nobody:
            raise
        return {"next_step": "Start a worker: none answers for this workflow, so it does not go on."}
    return {
        "state": status.state.value,
        "since": status.since,
        "waiting_for": status.waiting_for,
        "line_position": status.line_position,
        "deadline_at": status.deadline_at,
        "last_error": status.last_error,
        "compute": status.compute.model_dump(mode="json") if status.compute else None,
        "next_step": status.next_step,
    }


async def _failure(described: WorkflowExecutionDescription, client: HatchwayClient) -> str | None:
    """Why it ended without serving its job; None when it did."""
    from hatchway.client import ProvisionFailed, Started

    started = Started(described.id, described.run_id, "")
    try:
        await client.outcome(started)
    except ProvisionFailed as e:
        return f"{e.error_type}: {e}"
    return None


def _ended(outcome: OutcomeRow) -> dict[str, Any]:
    return {
        "end_reason": outcome.end_reason,
        "result": outcome.result,
        "exit_code": outcome.exit_code,
        "adopted_at": outcome.adopted_at,
        "closed_at": outcome.closed_at,
    }


def _left_over(row: SpawnRow | None) -> str:
    """What there is to do about the slot of an agent whose workflow has closed."""
    if row is None:
        return "Nothing: it has ended."
    return (
        f"Its slot is held until teardown/{row.agent_id} has confirmed that its compute on host {row.host_id} is gone: "
        f"see that a worker runs there. If the machine is gone for good: `hatchway forget {row.agent_id}`."
    )
