"""How a provision takes its compute down: close, destroy, decide, release, in one step or in three.

    closed ──► destroyed ──► decided and released ──► the outcome
       │           │ not within the first round
       │           └──► decided; handed over to TeardownWorkflow, with the slot still held ──► the outcome
       └ released before, by a step whose answer was lost ──► decided ──► the outcome

A completion of an adopted agent outranks every other fact, so nothing that is still to come can change that end. Then
the host that destroys also closes before and releases after: nearly every provision ends so, and it saves two steps.
Any other end waits for the compute to be gone, and is decided by the workflow then.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from activities.adoption import AdoptionActivities
from activities.models import Binding, CloseInput, ReleaseInput
from activities.slots import SlotActivities
from hatchway.model import (
    EndReason,
    FollowedEnded,
    ForgetRequest,
    ProvisionOutcome,
    ProvisionState,
    TeardownFacts,
    TeardownRequest,
    TeardownState,
)
from hatchway.transitions import SERVED
from workflows import endings
from workflows.evidence import cancelled
from workflows.messages import Messages
from workflows.page import DATABASE
from workflows.rounds import Round, tear_down_round
from workflows.steps import FIRST_ROUND, STORE_ALLOWANCE, store, through_cancel
from workflows.teardown import TeardownWorkflow

S = ProvisionState

BACKEND = "the backend to confirm that the compute is gone"
NOTHING = timedelta()


class TakingDown(Messages):
    async def _tear_down(self) -> ProvisionOutcome:
        """Until the compute is gone, or somebody else sees to that; then end with the outcome."""
        as_expected = self._end() is EndReason.COMPLETED
        self._enter(S.TEARING_DOWN, BACKEND, upsert=not as_expected)
        self._say(self._waiting_for, endings.trouble(self._end(), self._seen, self._slot))
        teardown, end = await through_cancel(self._take_down())
        if self._bound:
            await through_cancel(self._tell_follower(self._bound, end, teardown))
        self._enter(S.CLOSED, "nothing")
        return await self._end_as(end, teardown)

    async def _take_down(self) -> tuple[TeardownState, EndReason]:
        tried = None
        if facts := self._facts_of_final_end():
            self._ending_compute = True
            tried = await self._first_round(facts, final_end=EndReason.COMPLETED)
            if tried.torn and tried.torn.decision:
                self._seen.record_decision(tried.torn.decision)
                return tried.torn.teardown, self._end()
            if tried.store_away:
                self._store_away(tried.error or "it did not answer")
                tried = None
        return await self._step_by_step(tried)

    def _store_away(self, words: str) -> None:
        self._say(DATABASE, words)

    def _facts_of_final_end(self) -> TeardownFacts | None:
        """Where the compute is, if this end can change no more and nobody is about to write on the row."""
        in_flight = self._adopting or self._binding
        return self._known_facts() if self._end() is EndReason.COMPLETED and not in_flight else None

    async def _step_by_step(self, tried: Round | None) -> tuple[TeardownState, EndReason]:
        """`tried`: the first round, if that was taken in vain already."""
        closed = await store(
            AdoptionActivities.close,
            CloseInput(agent_id=self._agent_id, end_reason=self._end()),
            summary=f"close: {self._end().value}",
            away=self._store_away,
        )
        self._ending_compute = True
        await self._settle_spawn()
        teardown, facts = TeardownState.CONFIRMED, closed.facts or self._known_facts()
        if closed.released:
            teardown, facts = closed.teardown or TeardownState.PENDING, None
        elif facts:
            self._say(BACKEND)
            taken = tried or await self._first_round(facts)
            teardown = taken.torn.teardown if taken.torn else TeardownState.PENDING
        await workflow.wait_condition(lambda: self._adopting == 0 and self._binding == 0)
        return teardown, await self._decide_and_release(facts, teardown)

    async def _settle_spawn(self) -> None:
        """Stop a spawn that is still under way, and wait until it has let go: the teardown comes after it."""
        if self._spawning and not self._spawning.done():
            self._spawning.cancel()
            await workflow.wait([self._spawning])

    def _known_facts(self) -> TeardownFacts | None:
        """Where the compute is when the row has gone from under us but the spawn had answered."""
        if compute := self._compute:
            return TeardownFacts(backend_type=compute.backend, host_id=compute.host_id, compute=compute)
        return None

    async def _first_round(self, facts: TeardownFacts, final_end: EndReason | None = None) -> Round:
        """Destroy within the first round; after that TeardownWorkflow goes on: the slot stays held."""
        self._destroying = True
        taken = await tear_down_round(
            self._agent_id,
            facts,
            self._wire_reason(),
            number=1,
            limit=FIRST_ROUND + self.slot.stop_grace + (STORE_ALLOWANCE if final_end else NOTHING),
            forgotten=lambda: self._seen.forgotten_by is not None,
            final_end=final_end,
        )
        if taken.torn:
            self._doubt = taken.torn.doubt
        if not (taken.torn or taken.store_away or self._seen.forgotten_by):
            self._say(f"TeardownWorkflow teardown/{self._agent_id}, which goes on trying", taken.error)
        return taken

    async def _decide_and_release(self, facts: TeardownFacts | None, teardown: TeardownState) -> EndReason:
        """The outcome, from every fact, written down once; then the slot is free, or handed over while it is not."""
        believed = ReleaseInput(agent_id=self._agent_id, end_reason=self._end(), teardown=teardown)
        if facts and teardown is TeardownState.PENDING and not self._seen.forgotten_by:
            decided = await store(
                SlotActivities.record_outcome, believed, summary=f"decide: {believed.end_reason.value}",
                away=self._store_away,
            )  # fmt: skip
            self._seen.record_decision(decided)
            await self._hand_over(facts, self._end())
        else:
            decided = await store(
                SlotActivities.release, believed, summary=f"release the slot: {believed.end_reason.value}",
                away=self._store_away,
            )  # fmt: skip
            self._seen.record_decision(decided)
        return self._end()

    async def _hand_over(self, facts: TeardownFacts, end: EndReason) -> None:
        self._handed_over = True
        try:
            teardown = await workflow.start_child_workflow(
                TeardownWorkflow.run,
                TeardownRequest(agent_id=self._agent_id, facts=facts, reason=self._wire_reason(), end_reason=end),
                id=f"teardown/{self._agent_id}",
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{self._agent_id} on host {facts.host_id}: {end.value}",
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("teardown/%s is already under way", self._agent_id)
            return
        if self._seen.forgotten_by:  # said while it was being started, when only we could hear it
            await teardown.signal(
                TeardownWorkflow.forget_compute, ForgetRequest(agent_id=self._agent_id, by=self._seen.forgotten_by)
            )

    async def _tell_follower(self, bound: Binding, end: EndReason, teardown: TeardownState) -> None:
        """The provision whose job this was ends the same way. One that is gone needs no word."""
        try:
            await workflow.get_external_workflow_handle(bound.follower_workflow_id).signal(
                "followed_ended",
                FollowedEnded(
                    agent_id=bound.follower_agent_id, served_by=self._agent_id, end_reason=end,
                    result=self._seen.result, teardown=teardown,
                    error=endings.trouble(end, self._seen, self._slot),
                ),
            )  # fmt: skip
        except FailureError as e:
            workflow.logger.info("nobody follows %s any more: %s", self._agent_id, e)

    async def _end_as(self, end: EndReason, teardown: TeardownState) -> ProvisionOutcome:
        """Completed, Cancelled, or the typed failure."""
        if end is EndReason.CANCELLED and cancelled():
            raise asyncio.CancelledError
        if not (self._seen.adopted_by and end in SERVED):
            raise endings.failed(end, self._seen, self._slot)
        await through_cancel(workflow.wait_condition(workflow.all_handlers_finished))
        return ProvisionOutcome(
            agent_id=self._serving,
            scaler=self.slot.scaler,
            result=self._seen.result,
            end_reason=end,
            stages=self._stages.times(),
            teardown=teardown,
        )
