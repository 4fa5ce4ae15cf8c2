"""Whether anybody polls a task queue: asked of the server itself."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

RPC_LIMIT = timedelta(seconds=10)


async def is_polled(temporal: Client, queue: str) -> bool:
    """Whether a worker has asked for activities of this queue in the last five minutes, as far as the server knows."""
    answer = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        ),
        timeout=RPC_LIMIT,
    )
    return bool(answer.pollers)
