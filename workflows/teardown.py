"""TeardownWorkflow: destroys an agent's compute for as long as it takes, then frees its slot.

Takes over from a provision whose first teardown round failed, and from provisions whose workflow is gone.

    close ──► round 1 (30 s) ── failed ──► round 2, 3, … (1 h each), for ever
                 │ gone, or accepted           │
                 └──────────────┬──────────────┘        forget_compute: an operator's word, when nobody can confirm
                                ▼
                             release ──► closed

The slot is held until then: a machine that may still run is still paid for.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from activities.adoption import AdoptionActivities
    from activities.compute import ComputeActivities
    from activities.models import CloseInput, ReleaseInput, TeardownInput
    from activities.slots import SlotActivities
    from hatchway import search_attributes
    from hatchway.model import ForgetRequest, TeardownFacts, TeardownOutcome, TeardownRequest, TeardownState
    from hatchway.task_queues import host_queue
    from workflows.page import fenced
    from workflows.requests import validated
    from workflows.steps import (
        FIRST_ROUND,
        HEARTBEAT_TIMEOUT,
        LATER_ROUND,
        TEARDOWN_RETRY,
        last_words,
        nobody_took_it,
        store,
        through_cancel,
    )


@workflow.defn(name="TeardownWorkflow", versioning_behavior=VersioningBehavior.PINNED)
class TeardownWorkflow:
    @workflow.init
    def __init__(self, request: Any = None) -> None:
        self._agent_id = ""
        self._forgotten_by: str | None = None

    @workflow.run
    async def run(self, request: Any = None) -> TeardownOutcome:
        """Tear down one agent. `request` is a TeardownRequest. Does not end before the compute is gone or forgotten."""
        teardown = validated(TeardownRequest, request)
        self._agent_id = teardown.agent_id
        return await through_cancel(self._tear_down(teardown))

    async def _tear_down(self, request: TeardownRequest) -> TeardownOutcome:
        await store(
            AdoptionActivities.close,
            CloseInput(agent_id=request.agent_id, end_reason=request.end_reason),
            summary=f"close: {request.end_reason.value}",
        )
        state = await self._rounds(request)
        await store(
            SlotActivities.release_decided,
            ReleaseInput(agent_id=request.agent_id, end_reason=request.end_reason),
            summary="release the slot",
        )
        return TeardownOutcome(agent_id=request.agent_id, teardown=state)

    async def _rounds(self, request: TeardownRequest) -> TeardownState:
        facts, number = request.facts, 0
        queue = host_queue(facts.host_id)
        self._say(facts, "not tried yet by this workflow")
        while not self._forgotten_by:
            number += 1
            destroying = asyncio.create_task(
                workflow.execute_activity_method(
                    ComputeActivities.teardown,
                    TeardownInput(agent_id=request.agent_id, facts=facts, reason=request.reason),
                    task_queue=queue,
                    schedule_to_close_timeout=FIRST_ROUND if number == 1 else LATER_ROUND,
                    heartbeat_timeout=HEARTBEAT_TIMEOUT,
                    retry_policy=TEARDOWN_RETRY,
                    summary=f"tear down on {queue}, round {number}",
                )
            )
            await workflow.wait_condition(lambda: destroying.done() or bool(self._forgotten_by))  # noqa: B023
            if not destroying.done():
                destroying.cancel()
                break
            try:
                return destroying.result().teardown
            except ActivityError as e:
                error = f"nobody polls host {facts.host_id}" if nobody_took_it(e) else last_words(e)
                self._say(facts, error)
                if number == 1:
                    workflow.upsert_search_attributes([
                        search_attributes.STATE.value_set("tearing-down"),
                        search_attributes.AGENT_ID.value_set(request.agent_id),
                        search_attributes.REASON.value_set(request.end_reason.value),
                    ])
        return TeardownState.PENDING

    @workflow.signal(description="An operator's word that the compute is gone and nobody can confirm it.")
    def forget_compute(self, request: Any) -> None:
        try:
            forget = ForgetRequest.model_validate(request)
        except ValidationError as e:
            workflow.logger.warning("signal forget_compute ignored: %d malformed fields", e.error_count())
            return
        if forget.agent_id != self._agent_id:
            workflow.logger.warning("signal forget_compute ignored: it is for another agent")
            return
        self._forgotten_by = forget.by

    def _say(self, facts: TeardownFacts, error: str) -> None:
        workflow.set_current_details(
            f"### tearing-down\n\n"
            f"- **agent** `{self._agent_id}`, `{facts.backend_type}` on host `{facts.host_id}`\n"
            f"- **waits for** a worker on that host to confirm that the compute is gone; the slot is held until then\n"
            f"- **last error** as of {workflow.now():%Y-%m-%d %H:%M:%S} UTC\n\n{fenced(error)}\n\n"
            f"**What you can do:** start a worker on that host, or repair its engine. If the machine is gone for good: "
            f"`hatchway forget {self._agent_id}`."
        )
