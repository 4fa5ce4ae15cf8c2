"""How a workflow takes its steps: which timeouts and retries each kind of step has, and what a cancel may interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    TimeoutError,
    TimeoutType,
    is_cancelled_exception,
)

T = TypeVar("T")
A = TypeVar("A")
X = TypeVar("X")

LOCAL_LIMIT = timedelta(seconds=2)
"""How long a database step may run inside the workflow task. Longer, and it goes through a task queue, visibly."""

STORE_LIMIT = timedelta(seconds=15)
"""One attempt of a database step: lock_timeout is 5 s, the pool's own limit 5 s."""

RESOLVE_LIMIT = timedelta(minutes=5)
"""How long a provider of secrets may be away before the provision fails with that."""

STORE_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10))
ONCE = RetryPolicy(maximum_attempts=1)

PROMPT = timedelta(seconds=5)
"""Most agents register within this time of their spawn. Whoever looks for one that does not finds it after that."""

HEARTBEAT_TIMEOUT = timedelta(seconds=30)
SPAWN_ATTEMPTS = 3
SPAWN_RETRY_INITIAL = timedelta(seconds=2)
SPAWN_RETRY_MAXIMUM = timedelta(seconds=30)
UNREAD_PAUSE_MAXIMUM = timedelta(minutes=5)
"""Between two activities that no worker could read, each some ten events of a history that may wait for a week."""

NOBODY_POLLS_AFTER = timedelta(seconds=60)
"""A spawn or teardown that no worker has taken by then is said to be so on the provision's page."""

FIRST_ROUND = timedelta(seconds=30)
STORE_ALLOWANCE = timedelta(seconds=10)
"""On top of a round that also closes and releases: 5 s for each, beyond which the step gives up on the database."""
LATER_ROUND = timedelta(hours=1)
TEARDOWN_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=5))


async def store(
    method: Callable[[X, A], Awaitable[T]],
    arg: A,
    *,
    summary: str,
    limit: timedelta | None = None,
    away: Callable[[str], None] | None = None,
) -> T:
    """One short step: inside the workflow task first, and through the task queue if that did not get through.

    `away` is told the failure before the second try, which may last as long as the database is away.

    The first try costs no task round trip, which halves the history of a provision. The second waits for as long as the
    database is away, or for `limit`. Both are one step because every statement of the store may be repeated.
    """
    try:
        return await workflow.execute_local_activity_method(
            method, arg, schedule_to_close_timeout=LOCAL_LIMIT, retry_policy=ONCE, summary=summary
        )
    except FailureError as e:
        # On replay, the time-out of a local activity comes out of its marker bare, without the ActivityError around it
        # that it had when it happened. Both must lead the same way.
        cause = e.cause if isinstance(e, ActivityError) else e
        if is_cancelled_exception(e) or (isinstance(cause, ApplicationError) and cause.non_retryable):
            raise
        if away is not None:
            away(last_words(e))
    return await workflow.execute_activity_method(
        method,
        arg,
        start_to_close_timeout=STORE_LIMIT,
        schedule_to_close_timeout=limit,
        retry_policy=STORE_RETRY,
        summary=summary,
    )


async def through_cancel(step: Coroutine[Any, Any, T]) -> T:
    """Await a step to its end, however often this coroutine is cancelled meanwhile.

    `asyncio.shield` alone protects the step, but not the one who waits for it: the first cancel would lose its result.
    """
    task = asyncio.create_task(step)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
        except Exception:  # raised again by result() below
            break
    return task.result()


def call_off(step: asyncio.Task[Any]) -> None:
    """Cancel a step that nobody waits for any more. How it ends is read, or the loop would log it as an error."""
    step.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    step.cancel()


def nobody_took_it(error: ActivityError) -> bool:
    """No worker polled the queue: the attempt was never started.

    A retry that nobody takes runs into the limit of the whole round. So does one that was taken, and cut off there.
    """
    cause = error.cause
    if not isinstance(cause, TimeoutError):
        return False
    cut_off = bool(error.started_event_id)
    return cause.type is TimeoutType.SCHEDULE_TO_START or (cause.type is TimeoutType.SCHEDULE_TO_CLOSE and not cut_off)


TIMED_OUT: Mapping[TimeoutType, str] = {
    TimeoutType.START_TO_CLOSE: "the attempt did not end within its time limit",
    TimeoutType.HEARTBEAT: "the worker that had it stopped answering",
    TimeoutType.SCHEDULE_TO_START: "no worker took it",
    TimeoutType.SCHEDULE_TO_CLOSE: "it was not done within its time limit",
}


def last_words(error: BaseException) -> str:
    """The sentence of the innermost failure that has one."""
    cause: BaseException | None = error
    words = str(error)
    while cause is not None:
        if isinstance(cause, ApplicationError):
            return cause.message
        words = (TIMED_OUT.get(cause.type) if isinstance(cause, TimeoutError) and cause.type else str(cause)) or words
        cause = cause.__cause__
    return words
