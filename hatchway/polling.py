"""Whether anybody polls a task queue: asked of the server itself."""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta

from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
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


async def missing_build(temporal: Client, queue: str, alive: Container[str]) -> str | None:
    """Why workers that poll this queue get no workflow of it: the build that is current has none of them, or none is
    current and all of them have a version. None: they get them.

    `alive`: the identities of workers that are heard of. The server names one that has left for five minutes.

    https://docs.temporal.io/worker-versioning: a queue without a current version belongs to workers without one.
    """
    answer = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        timeout=RPC_LIMIT,
    )
    versioned = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    polled = {
        (worker.deployment_name, worker.build_id) if worker.worker_versioning_mode == versioned else ("", "")
        for worker in (poller.deployment_options for poller in answer.pollers if poller.identity in alive)
    }
    current = answer.versioning_info.current_deployment_version
    if not polled or (current.deployment_name, current.build_id) in polled:
        return None
    builds = ", ".join(sorted(f"{name} {build}" if name else "none" for name, build in polled))
    wanted = f"build {current.build_id} of {current.deployment_name} is current"
    return f"{wanted if current.build_id else 'no build is current'}, and those who poll are of: {builds}"
