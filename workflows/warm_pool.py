"""WarmPoolWorkflow: looks after one scaler's warm pool, at the word of whoever took an agent of it or waits for one.

    look ──► nobody is kept waiting by an idle agent ──► ended
     ▲                                            │
     └── told to look again, or the head of the line has waited for long enough

Short-lived: a signal starts it, and further ones while it looks make one further look. What it does not get through is
done by the sweep, which looks after every pool once a minute.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.models import PoolAnswer, ScalerInput
    from activities.warm import WarmActivities
    from hatchway.model import WarmPoolOutcome, WarmPoolRequest
    from workflows.requests import parse
    from workflows.steps import STORE_RETRY

LOOK_LIMIT = timedelta(minutes=2)
MOST_LOOKS = 100
"""Bounds the history. Who is kept waiting then is seen to by the sweep."""


@workflow.defn(name="WarmPoolWorkflow")
class WarmPoolWorkflow:
    @workflow.init
    def __init__(self, *request: Any) -> None:
        self._asked = True

    @workflow.run
    async def run(self, *request: Any) -> WarmPoolOutcome:
        """Look until nobody asks any more. `request` is a WarmPoolRequest."""
        scaler = parse(WarmPoolRequest, request).scaler
        started = released = 0
        for _ in range(MOST_LOOKS):
            self._asked = False
            answer = await self._look(scaler)
            started, released = started + answer.started, released + answer.released
            if answer.again_in is not None and not self._asked:
                await self._wait(answer.again_in)
            elif not self._asked:
                break
        return WarmPoolOutcome(started=started, released=released)

    async def _look(self, scaler: str) -> PoolAnswer:
        try:
            return await workflow.execute_activity_method(
                WarmActivities.tend,
                ScalerInput(scaler=scaler),
                start_to_close_timeout=LOOK_LIMIT,
                schedule_to_close_timeout=LOOK_LIMIT,
                retry_policy=STORE_RETRY,
                summary=f"fill and trim the pool of {scaler}",
            )
        except ActivityError as e:
            workflow.logger.warning("the pool of %s is left to the sweep: %s", scaler, e.cause)
            return PoolAnswer()

    async def _wait(self, limit: timedelta) -> None:
        try:
            await workflow.wait_condition(
                lambda: self._asked, timeout=limit, timeout_summary="the head of the line waits"
            )
        except TimeoutError:
            return

    @workflow.signal(description="An agent of this pool was taken, or somebody waits for what it holds: look.")
    def look(self, *_request: Any) -> None:
        self._asked = True
