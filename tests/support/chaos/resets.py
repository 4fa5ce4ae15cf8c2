"""`temporal workflow reset` of a provision that runs, to any of the workflow tasks that it has completed."""

from __future__ import annotations

import uuid

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus

from hatchway.client import Started, agent_id_of


async def reset(client: Client, started: Started, share: float) -> bool:
    """Back to the task that lies `share` (0 to 1) of the way behind its start. False: it has none yet, or has ended.

    Raises RPCError where the server is away, or where the run ends in the same moment.
    """
    described = await client.get_workflow_handle(started.workflow_id).describe()
    if described.status is not WorkflowExecutionStatus.RUNNING:
        return False
    if agent_id_of(described.raw_description) != started.agent_id:
        return False  # the job was offered again: that is another provision
    handle = client.get_workflow_handle(started.workflow_id, run_id=described.run_id)
    tasks = [
        event.event_id
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    if not tasks:
        return False
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=started.workflow_id, run_id=described.run_id),
            reason="by chaos",
            workflow_task_finish_event_id=tasks[min(int(share * len(tasks)), len(tasks) - 1)],
            request_id=uuid.uuid4().hex,
        )
    )
    return True
