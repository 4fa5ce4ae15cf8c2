"""TeardownWorkflow: destroys an agent's compute for as long as it takes, then frees its slot.

Takes over from a provision whose first teardown round failed, and from provisions whose workflow is gone.

    close ──► round 1 (30 s) ── failed ──► round 2, 3, … (1 h each), for ever
      │          │ gone, or accepted           │
      └──────────┴──────────────┬──────────────┘        forget_compute: an operator's word, when nobody can confirm
  released before               │
                                ▼
                             release ──► closed

The slot is held until then: a machine that may still run is still paid for.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.adoption import AdoptionActivities
    from activities.models import CloseInput, ReleaseInput
    from activities.slots import SlotActivities
    from hatchway import search_attributes
    from hatchway.model import ForgetRequest, ProvisionState, TeardownOutcome, TeardownRequest, TeardownState
    from workflows.page import DATABASE, HOST_CONFIRMS, code, render_teardown, render_torn_down
    from workflows.requests import addressed, parse, refuse_timeouts
    from workflows.rounds import tear_down_round
    from workflows.steps import FIRST_ROUND, LATER_ROUND, store, through_cancel


@workflow.defn(name="TeardownWorkflow")
class TeardownWorkflow:
    @workflow.init
    def __init__(self, *request: Any) -> None:
        # Now already: a signal that came with the start is heard before anything runs. What is wrong with the request
        # is said by `run`.
        given = request[0] if request and isinstance(request[0], dict) else {}
        self._agent_id = str(given.get("agent_id", ""))
        self._forgotten_by: str | None = None
        self._doubt: str | None = None

    @workflow.run
    async def run(self, *request: Any) -> TeardownOutcome:
        """Tear down one agent. `request` is a TeardownRequest. Does not end before the compute is gone or forgotten."""
        refuse_timeouts(workflow.info())
        teardown = parse(TeardownRequest, request)
        self._agent_id = teardown.agent_id
        return await through_cancel(self._tear_down(teardown))

    async def _tear_down(self, request: TeardownRequest) -> TeardownOutcome:
        closed = await store(
            AdoptionActivities.close,
            CloseInput(agent_id=request.agent_id, end_reason=request.end_reason),
            summary=f"close: {request.end_reason.value}",
            away=lambda words: self._say(request, words, DATABASE),
        )
        if closed.released:
            state = closed.teardown or TeardownState.PENDING
            how = "its slot was free before this teardown began"
        else:
            state = await self._rounds(request)
            how = self._how(state)
        await store(
            SlotActivities.release,
            ReleaseInput(agent_id=request.agent_id, end_reason=request.end_reason, teardown=state),
            summary="release the slot",
            away=lambda words: self._say(request, words, DATABASE),
        )
        workflow.set_current_details(render_torn_down(request.agent_id, workflow.now(), how, self._doubt))
        return TeardownOutcome(agent_id=request.agent_id, teardown=state)

    async def _rounds(self, request: TeardownRequest) -> TeardownState:
        self._say(request, None)
        for number in count(1):
            taken = await tear_down_round(
                request.agent_id,
                request.facts,
                request.reason,
                number=number,
                limit=FIRST_ROUND if number == 1 else LATER_ROUND,
                forgotten=lambda: self._forgotten_by is not None,
            )
            if taken.torn:
                self._doubt = taken.torn.doubt
                return taken.torn.teardown
            if self._forgotten_by:
                break
            self._say(request, taken.error)
            if number == 1:
                self._upsert(request)
        return TeardownState.PENDING

    @workflow.signal(description="An operator's word that the compute is gone and nobody can confirm it.")
    def forget_compute(self, *request: Any) -> None:
        if forget := addressed(ForgetRequest, request, self._agent_id):
            self._forgotten_by = forget.by

    def _upsert(self, request: TeardownRequest) -> None:
        """Once, and only off the straight path: what is stuck here is what people look for."""
        workflow.upsert_search_attributes(
            [
                search_attributes.STATE.value_set(ProvisionState.TEARING_DOWN.value),
                search_attributes.AGENT_ID.value_set(request.agent_id),
                search_attributes.REASON.value_set(request.end_reason.value),
            ]
        )

    def _say(self, request: TeardownRequest, error: str | None, waits_for: str = HOST_CONFIRMS) -> None:
        began, now = workflow.info().start_time, workflow.now()
        workflow.set_current_details(render_teardown(request, began, error, now, waits_for))

    def _how(self, state: TeardownState) -> str:
        match state:
            case TeardownState.CONFIRMED:
                return "confirmed gone by its host"
            case TeardownState.ACCEPTED:
                its = "a target, maybe not its own," if self._doubt else "its target"
                return f"{its} has accepted the teardown"
            case TeardownState.PENDING:
                return f"never confirmed gone; forgotten by {code(self._forgotten_by or 'nobody')}"
