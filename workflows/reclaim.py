"""ReclaimWorkflow: one pass over the compute of one host. A schedule of that host starts it, every five minutes.

    look, on the host ──► sighted now, and by the pass before ──► destroy, on the host ──► what is still sighted
         │ nobody polls the host                                                              │
         ▼                                                                                    ▼
    nothing of it on record: delete the schedule; else fail                   the next pass reads it in our result

The schedule hands each pass the result of the last one that completed, so a sighting needs no table. What a backend has
not listed this time stays sighted: it was neither seen again nor seen gone.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.models import Looked, LookInput, ReclaimInput
    from activities.reclaim import ReclaimActivities, ReclaimRetirement
    from hatchway.errors import ErrorType
    from hatchway.model import ReclaimOutcome, ReclaimRequest, Sighting
    from hatchway.task_queues import host_queue
    from workflows.page import render_reclaim
    from workflows.requests import parse
    from workflows.steps import (
        HEARTBEAT_TIMEOUT,
        NOBODY_POLLS_AFTER,
        STORE_LIMIT,
        STORE_RETRY,
        last_words,
        nobody_took_it,
    )

LOOK_LIMIT = timedelta(minutes=2)
"""One attempt: an engine that lists for longer hangs."""
LOOK_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10), maximum_attempts=3
)
DESTROY_LIMIT = timedelta(minutes=3)
"""For one agent, all attempts: most of it is the stop grace. What is not gone by then is for the next pass."""
DESTROY_RETRY = LOOK_RETRY
UNSEEN_KEPT = timedelta(days=1)
"""Then the backend that listed it has most likely left this host; if it comes back, it sights anew."""
AT_ONCE = 8
DESTROYED_A_PASS = 100
"""Keeps a pass and its history short: the rest stays sighted, and its turn comes with the next pass."""


@workflow.defn(name="ReclaimWorkflow")
class ReclaimWorkflow:
    @workflow.init
    def __init__(self, *request: Any) -> None:
        self._host_id = ""
        self._outcome = ReclaimOutcome()

    @workflow.run
    async def run(self, *request: Any) -> ReclaimOutcome:
        """One pass. `request` is a ReclaimRequest. Fails with ReclaimFailed when nothing could be looked at."""
        asked = parse(ReclaimRequest, request)
        self._host_id = asked.host_id
        before = _sighted_before(workflow.get_last_completion_result())
        if before is None:
            workflow.logger.warning("the last pass's sightings cannot be read: beginning anew")
            before = []
        self._show("looking")
        looked = await self._look(before)
        if looked is None:
            return await self._retire(asked)
        unseen = [
            known
            for known in before
            if known.backend not in looked.listed and workflow.now() - known.since < UNSEEN_KEPT
        ]
        self._outcome = ReclaimOutcome(
            seen=looked.seen,
            sighted=[*looked.sighted, *unseen],
            more=looked.more,
            restored=looked.restored,
            failed=looked.failed,
        )
        known = {(sighting.backend, sighting.agent_id) for sighting in before}
        due = [sighting for sighting in looked.sighted if (sighting.backend, sighting.agent_id) in known]
        workflow.random().shuffle(due)  # or what cannot be destroyed would keep the rest from its turn
        await self._destroy_all(due[:DESTROYED_A_PASS])
        if self._outcome.failed and not looked.listed:
            raise self._failed("; ".join(f"{what}: {why}" for what, why in sorted(self._outcome.failed.items())))
        self._show("looked, with failures" if self._outcome.failed else "looked")
        return self._outcome

    async def _look(self, before: list[Sighting]) -> Looked | None:
        """None: no worker of the host took it."""
        queue = host_queue(self._host_id)
        try:
            return await workflow.execute_activity_method(
                ReclaimActivities.look,
                LookInput(before=before, now=workflow.now()),
                task_queue=queue,
                schedule_to_start_timeout=NOBODY_POLLS_AFTER,
                start_to_close_timeout=LOOK_LIMIT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=LOOK_RETRY,
                summary=f"list what {queue} has of ours",
            )
        except ActivityError as e:
            if is_cancelled_exception(e):
                raise
            if nobody_took_it(e):
                return None
            raise self._failed(last_words(e)) from None

    async def _retire(self, asked: ReclaimRequest) -> ReclaimOutcome:
        answer = await workflow.execute_activity_method(
            ReclaimRetirement.retire,
            asked,
            start_to_close_timeout=STORE_LIMIT,
            schedule_to_close_timeout=LOOK_LIMIT,
            retry_policy=STORE_RETRY,
            summary="delete the schedule, if nothing of the host is on record",
        )
        if not answer.retired:
            raise self._failed(f"nobody polls host {asked.host_id}: start a worker there")
        self._outcome = ReclaimOutcome(retired=True)
        self._show("retired")
        return self._outcome

    async def _destroy_all(self, due: list[Sighting]) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def take(sighting: Sighting) -> None:
            async with turns:
                await self._destroy(sighting)

        if due:
            self._show(f"destroying {len(due)}")
        await asyncio.gather(*(take(sighting) for sighting in due))

    async def _destroy(self, sighting: Sighting) -> None:
        agent_id = sighting.agent_id
        try:
            answer = await workflow.execute_activity_method(
                ReclaimActivities.destroy,
                ReclaimInput(agent_id=agent_id, backend=sighting.backend),
                task_queue=host_queue(self._host_id),
                schedule_to_close_timeout=DESTROY_LIMIT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=DESTROY_RETRY,
                summary=f"{agent_id}: no row, no open workflow, since {sighting.since:%Y-%m-%d %H:%M:%S} UTC",
            )
        except ActivityError as e:
            if is_cancelled_exception(e):
                raise
            self._note(failed={**self._outcome.failed, agent_id: last_words(e)})
            return
        self._note(sighted=[one for one in self._outcome.sighted if one != sighting])
        if answer.spared is None:
            self._note(reclaimed=[*self._outcome.reclaimed, agent_id])

    def _note(self, **what: Any) -> None:
        self._outcome = self._outcome.model_copy(update=what)

    def _failed(self, why: str) -> ApplicationError:
        self._note(failed=self._outcome.failed or {self._host_id: why})
        self._show("failed")
        return ApplicationError(f"host {self._host_id}: {why}", type=ErrorType.RECLAIM_FAILED, non_retryable=True)

    def _show(self, title: str) -> None:
        workflow.set_current_details(render_reclaim(title, self._host_id, self._outcome, workflow.now()))


def _sighted_before(result: Any) -> list[Sighting] | None:
    """Of the last pass that completed; none, if there was none. None: one of another release that says it otherwise."""
    known = result.get("sighted", []) if isinstance(result, dict) else []
    try:
        return [Sighting.model_validate(one) for one in known]
    except ValidationError:
        return None
