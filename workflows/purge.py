"""PurgeWorkflow: one pass over what is spent. A schedule starts it, every five minutes.

    started by the schedule ──► every kind, side by side ──► purged, or failed with what failed

A kind that fails holds up no other; the pass then ends as failed, so that it can be seen, and the next one tries again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.purge import PurgeActivities
    from hatchway.errors import ErrorType
    from hatchway.model import PurgeInput, PurgeKind, PurgeRequest, SweepOutcome, SweptStep
    from workflows.page import render_purge
    from workflows.requests import parse
    from workflows.steps import last_words

STEP_LIMIT = timedelta(minutes=4)
"""The next pass comes after five."""
STEP_HEARTBEAT = timedelta(seconds=30)
STEP_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=3
)


@workflow.defn(name="PurgeWorkflow")
class PurgeWorkflow:
    @workflow.init
    def __init__(self, *request: Any) -> None:
        self._outcome = SweepOutcome(steps={kind.value: SweptStep() for kind in PurgeKind})

    @workflow.run
    async def run(self, *request: Any) -> SweepOutcome:
        """One pass. `request` is a PurgeRequest. Fails with PurgeFailed when a kind did, after all have ended."""
        parse(PurgeRequest, request)
        running = {kind.value for kind in PurgeKind}
        self._show(running)

        async def take(kind: PurgeKind) -> None:
            result = await self._purge(kind)
            self._outcome = SweepOutcome(steps={**self._outcome.steps, kind.value: result})
            running.discard(kind.value)
            self._show(running)

        await asyncio.gather(*(take(kind) for kind in PurgeKind))
        if failed := self._outcome.failed:
            raise ApplicationError(
                "; ".join(f"{kind}: {error}" for kind, error in failed.items()),
                self._outcome,
                type=ErrorType.PURGE_FAILED,
                non_retryable=True,
            )
        return self._outcome

    async def _purge(self, kind: PurgeKind) -> SweptStep:
        try:
            return await workflow.execute_activity_method(
                PurgeActivities.purge,
                PurgeInput(kind=kind),
                start_to_close_timeout=STEP_LIMIT,
                schedule_to_close_timeout=STEP_LIMIT,
                heartbeat_timeout=STEP_HEARTBEAT,
                retry_policy=STEP_RETRY,
                summary=f"purge {kind.value}",
            )
        except ActivityError as e:
            if is_cancelled_exception(e):
                raise
            return SweptStep(error=last_words(e))

    def _show(self, running: set[str]) -> None:
        workflow.set_current_details(render_purge(self._outcome, running, workflow.now()))
