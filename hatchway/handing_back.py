"""How a worker leaves: what runs may finish; what does not is handed back, so that another worker takes it up at once.

    asked to stop ──► nothing new is polled ── all finished ──────────────────────────────► left
                                │ the graceful time is over, or it was asked once more
                                ▼
                       each activity is cancelled here and fails as HandedBack ── let go ──► left
                                                                                └─ hangs ──► left behind; its heartbeats
                                                                                             stop, which Temporal sees

A worker that is killed instead costs its activities their heartbeat timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from hatchway.errors import ErrorType

log = structlog.get_logger("hatchway.worker")

DEFAULT_GRACEFUL = timedelta(seconds=20)
"""Most pulls, every database step and most teardowns end in it. Supervisors must give it, and LETTING_GO, before they
kill: Kubernetes gives 30 s by itself, systemd 90 s."""

LETTING_GO = timedelta(seconds=8)
"""For the calls that what was handed back has under way: a call in a thread or on the wire cannot be taken back."""

CORE_MARGIN = timedelta(seconds=30)
"""The SDK would cancel by itself after its own graceful time, and report that as a cancel: ours must come first."""

UNCOUNTED = frozenset({"spawn"})
"""Activities with few attempts: these fail for good, and their workflow asks anew without counting the attempt."""


@dataclass(eq=False)
class _Running:
    info: activity.Info
    task: asyncio.Task[Any]
    handed_back: bool = False


class HandingBack(Interceptor):
    """Knows every activity that runs in this process. One for all Workers of it."""

    def __init__(self) -> None:
        self.running: set[_Running] = set()
        self.over = False
        """What comes now is handed back before it begins."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self)

    def now(self) -> None:
        """Cancel what runs, and take up nothing more. Safe to repeat."""
        self.over = True
        for running in self.running:
            if not running.handed_back:
                running.handed_back = True
                running.task.cancel()
                log.info("handed back", **_described(running.info))

    def left_behind(self) -> None:
        """Say what has not let go."""
        for running in self.running:
            log.warning(
                "left behind: it did not let go; Temporal gives it to another worker when its heartbeats stay away",
                **_described(running.info),
            )


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, back: HandingBack) -> None:
        super().__init__(next)
        self._back = back

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info, task = activity.info(), asyncio.current_task()
        if self._back.over:
            log.info("handed back before it began", **_described(info))
            raise _handed_back(info)
        assert task is not None  # noqa: S101 - a coroutine that runs is in one
        running = _Running(info, task)
        self._back.running.add(running)
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            if not running.handed_back or activity.is_cancelled():  # its workflow wants it cancelled anyway
                raise
            raise _handed_back(info) from None
        finally:
            self._back.running.discard(running)


def _handed_back(info: activity.Info) -> ApplicationError:
    """`details` is the attempt, which a workflow that counts attempts takes back."""
    return ApplicationError(
        "the worker that had it was told to stop, and has handed it back",
        info.attempt,
        type=ErrorType.HANDED_BACK,
        non_retryable=info.activity_type in UNCOUNTED,
        next_retry_delay=timedelta(milliseconds=100),
        category=ApplicationErrorCategory.BENIGN,
    )


def _described(info: activity.Info) -> dict[str, Any]:
    return {
        "activity": info.activity_type,
        "task_queue": info.task_queue,
        "workflow_id": info.workflow_id,
        "attempt": info.attempt,
    }


async def shut_down(
    workers: Iterable[Worker],
    leaving: Iterable[Awaitable[None]],
    back: HandingBack,
    graceful: timedelta,
    at_once: asyncio.Event,
) -> bool:
    """Stop `workers`, and await those that are `leaving` already. False when something hangs and is left behind."""
    log.info("stopping: running activities may finish", grace_s=graceful.total_seconds(), running=len(back.running))
    stopping = asyncio.gather(*leaving, *(worker.shutdown() for worker in workers))
    hurried = asyncio.create_task(at_once.wait())
    either: set[asyncio.Future[Any]] = {stopping, hurried}
    await asyncio.wait(either, timeout=graceful.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not stopping.done():
        back.now()
        await asyncio.wait({stopping}, timeout=LETTING_GO.total_seconds())
    if not stopping.done():
        back.left_behind()
        stopping.cancel()
        return False
    stopping.result()
    return True
