"""Whether the workflow that somebody counts on is still there: asked of Temporal, never guessed from silence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from hatchway.client import agent_id_of

RPC_LIMIT = timedelta(seconds=5)

AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}")
"""What an agent id can be, whoever made it. It comes from labels on an engine, and goes into a query."""


async def workflow_is_gone(temporal: Client, workflow_id: str, first_run_id: str | None) -> bool:
    """Closed, forgotten by the server, or another start under the same id."""
    try:
        found = await temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is RPCStatusCode.NOT_FOUND:
            return True
        raise
    if found.status is not WorkflowExecutionStatus.RUNNING:
        return True
    there = found.raw_description.workflow_execution_info.first_run_id
    return bool(there) and there != first_run_id  # older servers leave it out


@dataclass(frozen=True, slots=True)
class OpenWorkflow:
    """Who answers for an agent: its provision, or the teardown that has taken over."""

    workflow_id: str
    first_run_id: str
    is_provision: bool


async def open_workflow_of(temporal: Client, agent_id: str) -> OpenWorkflow | None:
    """The open workflow of an agent of whom nothing but the id is known. None: there is none.

    The agent's id is that of its provision's first run, which leads to the workflow's id; a reset, or a state without
    search attributes, does not hide it. Lists may be late, so the workflow itself is asked. Raises RPCError.
    """
    if teardown := await _described(temporal, f"teardown/{agent_id}"):
        return OpenWorkflow(f"teardown/{agent_id}", _first_run(teardown), is_provision=False)
    asked: set[str] = set()
    async for listed in temporal.list_workflows(_query(agent_id), rpc_timeout=RPC_LIMIT):
        if listed.id in asked:
            continue
        asked.add(listed.id)
        found = await _described(temporal, listed.id)
        if found and agent_id_of(found.raw_description) == agent_id:
            return OpenWorkflow(listed.id, _first_run(found), is_provision=True)
    return None


async def _described(temporal: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """The workflow's latest run, if that is open."""
    try:
        found = await temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return found if found.status is WorkflowExecutionStatus.RUNNING else None


def _first_run(found: WorkflowExecutionDescription) -> str:
    return str(found.raw_description.workflow_execution_info.first_run_id or found.run_id)


def _query(agent_id: str) -> str:
    """By its first run, listed for as long as the namespace keeps it; a reset one that outlives that, by its name."""
    if not AGENT_ID.fullmatch(agent_id):
        raise ValueError("not an agent id")
    by_name = f'(HatchwayAgentId = "{agent_id}" AND ExecutionStatus = "Running")'
    digits = agent_id.removeprefix("scaler-")
    if not re.fullmatch("[0-9a-f]{32}", digits):
        return by_name
    return f'RunId = "{UUID(digits)}" OR {by_name}'
