"""Payloads that no client of ours would send, from whoever can reach the namespace: none of them stops a workflow."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until

S = ProvisionState
CANARY = "s3cr3t-canary"
AT_ONCE = timedelta(seconds=5)
"""By the clock of the server: how soon this test gets to look is no matter of the workflow."""


def _payload(data: bytes, encoding: str = "json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding.encode()}, data=data)


GOOD = _payload(b'{"labels": ["linux"]}')

HOSTILE: dict[str, list[Payload]] = {
    "no payload": [],
    "two payloads": [_payload(json.dumps({"agent_id": CANARY}).encode()), GOOD],
    "an encoding that nobody knows": [_payload(CANARY.encode(), "binary/encrypted")],
    "no encoding at all": [Payload(data=CANARY.encode())],
    "broken JSON": [_payload(b'{"agent_id": "' + CANARY.encode())],
    "half a character": [_payload(b'{"agent_id": "' + CANARY.encode() + b'\\ud800"}')],
    "bytes that are no text": [_payload(b"\xff\xfe" + CANARY.encode())],
    "binary": [_payload(CANARY.encode(), "binary/plain")],
    "null": [Payload(metadata={"encoding": b"binary/null"})],
    "deep nesting": [_payload(b"[" * 5000 + b"]" * 5000)],
}


async def _signal(lab: Lab, workflow_id: str, name: str, payloads: list[Payload]) -> None:
    await lab.temporal.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=lab.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name=name,
            input=Payloads(payloads=payloads),
            request_id=uuid.uuid4().hex,
        )
    )


async def _update(lab: Lab, started: Started, name: str, payloads: list[Payload]) -> bool:
    """True when it was answered with a failure."""
    answer = await lab.temporal.workflow_service.update_workflow_execution(
        UpdateWorkflowExecutionRequest(
            namespace=lab.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=started.workflow_id),
            wait_policy=WaitPolicy(lifecycle_stage=3),  # type: ignore[arg-type]
            request=Request(
                meta=Meta(update_id=uuid.uuid4().hex, identity="test"),
                input=Input(name=name, args=Payloads(payloads=payloads)),
            ),
        )
    )
    return answer.outcome.HasField("failure")


async def _start(lab: Lab, workflow: str, payloads: list[Payload], workflow_id: str) -> None:
    await lab.temporal.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=lab.temporal.namespace,
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name=workflow),
            task_queue=TaskQueue(name="hatchway"),
            input=Payloads(payloads=payloads),
            request_id=uuid.uuid4().hex,
        )
    )


async def _no_task_failed(lab: Lab, workflow_id: str) -> None:
    async for event in lab.temporal.get_workflow_handle(workflow_id).fetch_history_events():
        assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, event


@pytest.mark.parametrize("workflow", ["ProvisionWorkflow", "TeardownWorkflow"])
async def test_a_start_that_cannot_be_read_fails_at_once_in_words_and_without_its_values(
    lab: Lab, workflow: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for what, payloads in HOSTILE.items():
        await _start(lab, workflow, payloads, f"{workflow} {what}")
    for what in HOSTILE:
        handle = lab.temporal.get_workflow_handle(f"{workflow} {what}")

        async def closed(handle: Any = handle) -> list[Any] | None:
            events = [event async for event in handle.fetch_history_events()]
            return events if events[-1].HasField("workflow_execution_failed_event_attributes") else None

        events = await until(closed, what=what)
        last = events[-1]
        assert last.event_time.ToDatetime() - events[0].event_time.ToDatetime() <= AT_ONCE, what
        failure = last.workflow_execution_failed_event_attributes.failure
        assert failure.application_failure_info.type == ErrorType.INVALID_REQUEST, what
        assert CANARY not in str(failure), what
        await _no_task_failed(lab, f"{workflow} {what}")
    assert CANARY not in caplog.text
    assert lab.cloud.log == []


async def test_a_message_that_cannot_be_read_changes_nothing(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)

    for payloads in HOSTILE.values():
        for name in ("release", "condemn", "compute_exited", "granted", "forget_compute"):
            await _signal(lab, started.workflow_id, name, payloads)
        assert await asyncio.wait_for(_update(lab, started, "adopt", payloads), 5)
    for what, payloads in HOSTILE.items():
        if what not in ("no payload", "null"):
            assert await asyncio.wait_for(_update(lab, started, "wait_adopted", payloads), 5), what

    await lab.adopt(started)
    assert (await lab.status(started)).state is S.ACTIVE
    await lab.complete(started)
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await _no_task_failed(lab, started.workflow_id)
    assert CANARY not in caplog.text
    await lab.nothing_left()
