"""Whether the workflow that somebody counts on is still there: asked of Temporal, never guessed from silence."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

RPC_LIMIT = timedelta(seconds=5)


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
    return found.raw_description.workflow_execution_info.first_run_id != first_run_id
