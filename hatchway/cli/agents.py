"""The commands about agents that exist: list, show, release, cancel, forget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hatchway.cli.connections import database, hatchway_client, run_async
from hatchway.cli.failures import Failure, failed
from hatchway.cli.output import JsonOption, as_json, emit, table
from hatchway.cli.targets import Target

if TYPE_CHECKING:
    from hatchway.client import HatchwayClient
    from hatchway.model import ProvisionStatus
    from hatchway.store.pool import Database
    from hatchway.store.rows import SpawnRow

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="An agent id, or the id of its workflow.")]
ByOption = Annotated[str | None, typer.Option(help="Who asks, for the record. Unset: your login name.")]

COLUMNS = ("agent_id", "scaler", "state", "age_s", "job_id", "host_id", "adopted_by")


def list_agents(
    scaler: Annotated[str | None, typer.Option(help="Only this scaler's agents.")] = None, json: JsonOption = False
) -> None:
    """List the agents that hold a slot, oldest first. With --json one object a line."""
    rows = [_listed(row) for row in run_async(_list(scaler))]
    if json:
        for row in rows:
            print(as_json(row))
    elif rows:
        print("\n".join(table(COLUMNS, rows)))
    else:
        print("no agent holds a slot")


def show(agent: AgentArgument, json: JsonOption = False) -> None:
    """Say what an agent is doing, since when, for whom it waits, and what can be done."""
    emit(run_async(_show(agent)), json_wanted=json)


def release(
    agent: AgentArgument,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for its job.")] = False,
    by: ByOption = None,
    json: JsonOption = False,
) -> None:
    """Let an agent go. A busy one finishes its job first, unless --now."""
    target = run_async(_release(agent, by, now=now))
    _told(target, "asked to go now" if now else "asked to go; a busy one finishes its job first", json=json)


def cancel(
    agent: Annotated[str, typer.Argument(metavar="AGENT|WORKFLOW", help="An agent id, or a workflow id.")],
    reason: Annotated[str, typer.Option(help="For the record.")] = "",
    json: JsonOption = False,
) -> None:
    """End a provision now, whatever it does. Its compute is torn down first."""
    _told(run_async(_cancel(agent, reason)), "cancelled; its compute is torn down first", json=json)


def forget(agent: AgentArgument, by: ByOption = None, json: JsonOption = False) -> None:
    """Say that an agent's compute is gone for good, when no worker can confirm it any more. Frees its slot.

    Only for a machine that will never come back: if it does, its agent goes on running without a slot.
    """
    _told(run_async(_forget(agent, by)), "forgotten: its slot is freed on your word", json=json)


def _told(target: Target, what: str, *, json: bool) -> None:
    if json:
        emit({"agent_id": target.agent_id, "workflow_id": target.workflow_id, "done": True}, json_wanted=True)
    else:
        print(f"{target.agent_id}: {what}")


async def _list(scaler: str | None) -> list[SpawnRow]:
    from hatchway.store.slots import Slots

    async with database() as db:
        return await Slots(db).list(scaler)


def _listed(row: SpawnRow) -> dict[str, Any]:
    return {
        "agent_id": row.agent_id,
        "scaler": row.scaler,
        "state": row.state.value,
        "age_s": round(row.age.total_seconds(), 1),
        "job_id": row.job_id,
        "host_id": row.host_id,
        "adopted_by": row.adopted_by,
    }


async def _show(agent: str) -> dict[str, Any]:
    from hatchway.cli.targets import find
    from hatchway.links import workflow_url

    async with database() as db, hatchway_client() as client:
        target = await find(agent, db, client)
        said: dict[str, Any] = {"agent_id": target.agent_id, "workflow_id": target.workflow_id}
        if target.row:
            said |= {"slot": _listed(target.row)}
        if target.outcome:
            said |= {"outcome": _ended(target)}
        if target.workflow_id is None:
            return said | {"next_step": "Nothing: its workflow is past retention."}
        described = await client.temporal.get_workflow_handle(target.workflow_id).describe()
        url = workflow_url(client.temporal, target.workflow_id, described.run_id)
        status = described.status.name.lower() if described.status else "unknown"
        said |= {"workflow_status": status, "ui_url": url}
        return said | await _status(target, client)


async def _status(target: Target, client: HatchwayClient) -> dict[str, Any]:
    """The workflow's own words, if a worker is there to say them, and if it is still about this agent."""
    from temporalio.service import RPCError, RPCStatusCode

    try:
        status = await client.status(target.workflow())
    except RPCError as e:
        if e.status not in (
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.CANCELLED,
            RPCStatusCode.FAILED_PRECONDITION,
        ):
            raise
        return {"next_step": "Start a worker: none answers for this workflow, so it does not go on."}
    if status.agent_id != target.agent_id:
        return {"next_step": f"Nothing: its job was offered again, and has agent {status.agent_id} now."}
    return _worded(status)


def _worded(status: ProvisionStatus) -> dict[str, Any]:
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


def _ended(target: Target) -> dict[str, Any]:
    outcome = target.outcome
    assert outcome is not None  # noqa: S101 - the caller has looked
    return {
        "end_reason": outcome.end_reason,
        "result": outcome.result,
        "exit_code": outcome.exit_code,
        "adopted_at": outcome.adopted_at,
        "closed_at": outcome.closed_at,
    }


async def _release(agent: str, by: str | None, *, now: bool) -> Target:
    async with database() as db, hatchway_client() as client:
        target = await _find(agent, db, client)
        with _still_open(target):
            await client.release(target.workflow(), target.agent_id, by=by, now=now)
        return target


async def _cancel(agent: str, reason: str) -> Target:
    from hatchway.cli.targets import AGENT_ID, agent_of

    async with hatchway_client() as client:
        if AGENT_ID.match(agent):
            async with database() as db:
                target = await _find(agent, db, client)
        else:  # a workflow id is all that Temporal needs: this works with Postgres away
            target = Target(await agent_of(agent, client), agent, None, None)
        with _still_open(target):
            await client.cancel(target.workflow(), reason)
        return target


async def _forget(agent: str, by: str | None) -> Target:
    async with database() as db, hatchway_client() as client:
        target = await _find(agent, db, client)
        if not await client.forget(target.workflow(), target.agent_id, by):
            raise _over(target)
        return target


async def _find(agent: str, db: Database, client: HatchwayClient) -> Target:
    """An agent that has not ended. Raises Failure."""
    from hatchway.cli.targets import find

    target = await find(agent, db, client)
    if target.row is None and target.outcome and target.outcome.closed_at:
        raise _over(target)
    return target


@contextmanager
def _still_open(target: Target) -> Iterator[None]:
    """A workflow that has closed hears nothing any more."""
    from temporalio.service import RPCError, RPCStatusCode

    try:
        yield
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise
        if target.row is None:
            raise _over(target) from None
        raise failed(
            "closed",
            f"the workflow of {target.agent_id} has closed; its slot is held until teardown/{target.agent_id} has "
            "confirmed that its compute is gone: see `hatchway show`, or `hatchway forget`",
        ) from None


def _over(target: Target) -> Failure:
    end = f": {target.outcome.end_reason}" if target.outcome and target.outcome.end_reason else ""
    return failed("ended", f"agent {target.agent_id} has ended already{end}")
