"""The commands about agents that exist: list, release, cancel, forget."""

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
    from hatchway.store.pool import Database
    from hatchway.store.rows import SpawnRow

AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="An agent id, or the id of its workflow.")]
ByOption = Annotated[str | None, typer.Option(help="Who asks, for the record. Unset: your login name.")]

COLUMNS = ("agent_id", "scaler", "state", "age_s", "job_id", "host_id", "adopted_by")


def list_agents(
    scaler: Annotated[str | None, typer.Option(help="Only this scaler's agents.")] = None, json: JsonOption = False
) -> None:
    """List the agents that hold a slot, oldest first. With --json one object a line."""
    rows = [listed(row) for row in run_async(_list(scaler))]
    if json:
        for row in rows:
            print(as_json(row))
    elif rows:
        print("\n".join(table(COLUMNS, rows)))
    else:
        print("no agent holds a slot")


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

    Also for an agent whose workflow is gone or was never known, and whom nobody tears down. Only for a machine that
    will never come back: if it does, its agent goes on running without a slot.
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


def listed(row: SpawnRow) -> dict[str, Any]:
    """A slot as `list` prints it."""
    return {
        "agent_id": row.agent_id,
        "scaler": row.scaler,
        "state": row.state.value,
        "age_s": round(row.age.total_seconds(), 1),
        "job_id": row.bound_job_id or row.job_id,
        "host_id": row.host_id,
        "adopted_by": row.adopted_by,
    }


async def _release(agent: str, by: str | None, *, now: bool) -> Target:
    async with database() as db, hatchway_client() as client:
        target = await _find(agent, db, client)
        await _open_run(target, client)
        with _still_open(target):
            await client.release(target.workflow(), target.agent_id, by=by, now=now)
        return target


async def _cancel(agent: str, reason: str) -> Target:
    from hatchway.cli.targets import AGENT_ID, of_workflow

    async with hatchway_client() as client:
        if AGENT_ID.match(agent):
            async with database() as db:
                target = await _find(agent, db, client)
        else:  # a workflow id is all that Temporal needs: this works with Postgres away
            target = await of_workflow(agent, client)
        run_id = await _open_run(target, client)
        await client.cancel(target.workflow(), reason, run_id=run_id)
        return target


async def _open_run(target: Target, client: HatchwayClient) -> str:
    """The run of this agent, still open. Raises Failure: a job that was offered again has another agent under the same
    workflow id, and Temporal takes a cancel of a closed workflow without a word.
    """
    from temporalio.client import WorkflowExecutionStatus

    from hatchway.client import agent_id_of

    described = await client.temporal.get_workflow_handle(target.workflow()).describe()
    open_here = described.status is WorkflowExecutionStatus.RUNNING
    if not open_here or agent_id_of(described.raw_description) != target.agent_id:
        raise _closed(target)
    return str(described.run_id)


async def _forget(agent: str, by: str | None) -> Target:
    from hatchway.client import whoami
    from hatchway.teardowns import forget as abandoned_forget

    async with database() as db, hatchway_client() as client:
        target = await _find(agent, db, client)
        if target.row is not None and await _abandoned(target.row, client):
            await abandoned_forget(client.temporal, target.row, by or whoami())
            return target
        if target.row is not None and not target.row.closing:
            raise failed(
                "not_tearing_down",
                f"agent {target.agent_id} is {target.row.state.value}, and nobody has tried to tear it down yet: "
                "`hatchway cancel` or `hatchway release --now` first, and forget it when that cannot be confirmed",
            )
        if not await client.forget(target.workflow(), target.agent_id, by):
            raise _over(target)
        return target


async def _abandoned(row: SpawnRow, client: HatchwayClient) -> bool:
    """Its workflow is gone, or nobody ever knew one: whoever is told of it by that id is another agent's."""
    from hatchway.liveness import workflow_is_gone

    if row.workflow_id is None:
        return True
    return await workflow_is_gone(client.temporal, row.workflow_id, row.workflow_first_run_id)


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
        raise _closed(target) from None


def _closed(target: Target) -> Failure:
    if target.row is None:
        return _over(target)
    return failed(
        "closed",
        f"the workflow of {target.agent_id} has closed; its slot is held until teardown/{target.agent_id} has "
        "confirmed that its compute is gone: see `hatchway show`, or `hatchway forget`",
    )


def _over(target: Target) -> Failure:
    end = f": {target.outcome.end_reason}" if target.outcome and target.outcome.end_reason else ""
    return failed("ended", f"agent {target.agent_id} has ended already{end}")
