"""SweepWorkflow: one pass over what no provision sees to by itself. A schedule starts it, once a minute.

    started by the schedule ──► every step, side by side ──► swept, or failed with what failed

A pass that takes longer than a minute is not joined by a second one: the schedule skips those that would overlap. A
step that fails holds up no other; the pass then ends as failed, so that it can be seen, and the next one tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.reap import ReapActivities
    from activities.sweep import SweepActivities
    from activities.warm import WarmActivities
    from hatchway.errors import ErrorType
    from hatchway.model import SweepOutcome, SweepRequest, SweptStep
    from workflows.page import render_sweep
    from workflows.requests import parse
    from workflows.steps import last_words

STEP_LIMIT = timedelta(minutes=5)
STEP_HEARTBEAT = timedelta(seconds=30)
STEP_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=3
)


@dataclass(frozen=True)
class Step:
    """One kind of work: an activity that takes a SweepRequest and answers a SweptStep, and may be repeated."""

    name: str
    activity: Callable[[Any, SweepRequest], Awaitable[SweptStep]]
    summary: str


STEPS = (
    Step("reap", ReapActivities.reap, "tear down whom nobody answers for, tell again what was not heard"),
    Step("line", SweepActivities.line, "hand over room, see to grants and outdated waiters"),
    Step("warm pools", WarmActivities.sweep, "fill them, trim them, make room for who has waited for long enough"),
)


@workflow.defn(name="SweepWorkflow")
class SweepWorkflow:
    @workflow.init
    def __init__(self, *request: Any) -> None:
        self._outcome = SweepOutcome(steps={step.name: SweptStep() for step in STEPS})

    @workflow.run
    async def run(self, *request: Any) -> SweepOutcome:
        """One pass. `request` is a SweepRequest. Fails with SweepFailed when a step did, after all have ended."""
        asked = parse(SweepRequest, request)
        self._show(running={step.name for step in STEPS})
        running = {step.name for step in STEPS}

        async def take(step: Step) -> None:
            result = await self._take(step, asked)
            self._outcome = SweepOutcome(steps={**self._outcome.steps, step.name: result})
            running.discard(step.name)
            self._show(running)

        await asyncio.gather(*(take(step) for step in STEPS))
        if failed := self._outcome.failed:
            raise ApplicationError(
                "; ".join(f"step {name}: {error}" for name, error in failed.items()),
                self._outcome,
                type=ErrorType.SWEEP_FAILED,
                non_retryable=True,
            )
        return self._outcome

    async def _take(self, step: Step, asked: SweepRequest) -> SweptStep:
        try:
            return await workflow.execute_activity_method(
                step.activity,
                asked,
                start_to_close_timeout=STEP_LIMIT,
                schedule_to_close_timeout=STEP_LIMIT,
                heartbeat_timeout=STEP_HEARTBEAT,
                retry_policy=STEP_RETRY,
                summary=f"{step.name}: {step.summary}",
            )
        except ActivityError as e:
            if is_cancelled_exception(e):
                raise
            return SweptStep(error=last_words(e))

    def _show(self, running: set[str]) -> None:
        workflow.set_current_details(render_sweep(self._outcome, running, workflow.now()))
