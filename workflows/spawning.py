"""One spawn, with its attempts: until the backend answered, failed for good, or nobody was there to ask.

The host on which an attempt is about to have its effect is stamped on the row before the effect. An attempt elsewhere
is told so (BoundToHost), and the next one goes to that host's own queue. An attempt whose worker was told to stop
(HandedBack) does not count: a rolling restart of many workers must not use up what is for the backend's faults. Nor
does one whose worker lacks the key that its input is encrypted with: nothing was done, and others may have it. It ends
the activity at once, so that what Temporal counts as attempts did ask the backend. How many had asked before it nobody
says, so the activity that follows has as many as the one that ended so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from activities.compute import ComputeActivities
from activities.models import Slot, SpawnInput
from hatchway.errors import ErrorType, HatchwayError
from hatchway.model import ComputeRef, ProvisionRequest
from hatchway.task_queues import host_queue, spawn_queue
from workflows.steps import (
    HEARTBEAT_TIMEOUT,
    NOBODY_POLLS_AFTER,
    SPAWN_ATTEMPTS,
    SPAWN_RETRY_INITIAL,
    SPAWN_RETRY_MAXIMUM,
    UNREAD_PAUSE_MAXIMUM,
    last_words,
    nobody_took_it,
)

PAYLOAD_KEY_MISSING = "PayloadKeyMissing"
"""The name of `hatchway.codec.PayloadKeyMissing`, as failures carry it; the codec does I/O and stays outside."""


class SpawnFailedError(HatchwayError):
    """No attempt succeeded. Says what the last one failed with."""


async def spawn(agent_id: str, request: ProvisionRequest, slot: Slot, say: Callable[[str, str], None]) -> ComputeRef:
    """The agent's compute. `say(waiting_for, last_error)` is called while nobody takes it.

    Raises SpawnFailedError; ActivityError or CancelledError when it was cancelled.
    """
    attempts, patience, unread_pause = SPAWN_ATTEMPTS, NOBODY_POLLS_AFTER, SPAWN_RETRY_INITIAL
    gives_up_at = workflow.now() + request.wait_timeout
    queue = host_queue(slot.host_id) if slot.host_id else spawn_queue(slot.scaler)
    while True:
        try:
            answer = await workflow.execute_activity_method(
                ComputeActivities.spawn,
                SpawnInput(
                    agent_id=agent_id,
                    request=request,
                    spawn_timeout=slot.spawn_timeout,
                    adoption_timeout=slot.adoption_timeout,
                ),
                task_queue=queue,
                schedule_to_start_timeout=max(min(patience, gives_up_at - workflow.now()), timedelta(seconds=1)),
                start_to_close_timeout=slot.spawn_timeout,
                heartbeat_timeout=min(HEARTBEAT_TIMEOUT, slot.spawn_timeout),
                retry_policy=RetryPolicy(
                    initial_interval=SPAWN_RETRY_INITIAL,
                    maximum_interval=SPAWN_RETRY_MAXIMUM,
                    maximum_attempts=attempts,
                    non_retryable_error_types=[PAYLOAD_KEY_MISSING],
                ),
                cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=f"spawn on {queue}",
            )
            return answer.compute
        except ActivityError as e:
            if is_cancelled_exception(e):
                raise
            if isinstance(e.cause, ApplicationError) and e.cause.type == ErrorType.BOUND_TO_HOST:
                host_id, tried = e.cause.details
                queue, attempts = host_queue(host_id), max(1, attempts - tried + 1)
                gives_up_at = max(gives_up_at, workflow.now() + NOBODY_POLLS_AFTER)
            elif isinstance(e.cause, ApplicationError) and e.cause.type == ErrorType.HANDED_BACK and not _called_off():
                (tried,) = e.cause.details
                attempts = max(1, attempts - tried + 1)
                gives_up_at = max(gives_up_at, workflow.now() + NOBODY_POLLS_AFTER)
            elif _could_not_read(e) and workflow.now() < gives_up_at and not _called_off():
                say(
                    "a worker that has the payload keys", f"a worker of {queue} lacks a key that this is encrypted with"
                )
                await workflow.sleep(
                    min(unread_pause, gives_up_at - workflow.now()), summary="until it is given out again"
                )
                unread_pause = min(2 * unread_pause, UNREAD_PAUSE_MAXIMUM)
            elif nobody_took_it(e) and workflow.now() < gives_up_at:
                say(f"a worker: nobody polls {queue}, or all who do are busy", f"no worker took the spawn from {queue}")
                patience = request.wait_timeout
            else:
                why = f"nobody polled {queue} in time" if nobody_took_it(e) else last_words(e)
                raise SpawnFailedError(why) from None


def _could_not_read(e: ActivityError) -> bool:
    """An attempt whose input did not decode, for want of a key; our converter has named it so."""
    return isinstance(e.cause, ApplicationError) and e.cause.type == PAYLOAD_KEY_MISSING


def _called_off() -> bool:
    """A cancel that came too late for the attempt to hear it: the failure that came instead must not hide it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
