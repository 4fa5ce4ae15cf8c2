"""The runner leaves the sandbox around a workflow's own code."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from hatchway.runner import ContextFreeRunner
    from tests.support.namespaces import Namespaces


@activity.defn
async def echo(said: str) -> str:
    return said


@workflow.defn
class Clock:
    @workflow.run
    async def run(self, reads_the_clock: bool) -> str:
        if reads_the_clock:
            return f"{time.time()}"
        return await workflow.execute_activity(
            echo, "as it was said", start_to_close_timeout=timedelta(seconds=30), summary="echo"
        )


@pytest.mark.parametrize("reads_the_clock", [False, True])
async def test_only_a_workflow_that_reads_the_wall_clock_is_refused(
    namespaces: Namespaces, reads_the_clock: bool
) -> None:
    client = await namespaces.take()
    queue = f"clock-{uuid.uuid4().hex}"
    async with Worker(
        client, task_queue=queue, workflows=[Clock], activities=[echo], workflow_runner=ContextFreeRunner(),
        workflow_failure_exception_types=[Exception],
    ):  # fmt: skip
        ending = client.execute_workflow(Clock.run, reads_the_clock, id=queue, task_queue=queue)
        if not reads_the_clock:
            assert await ending == "as it was said"
            return
        with pytest.raises(WorkflowFailureError) as failed:
            await ending

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "RestrictedWorkflowAccessError"
