"""What a provision does on its way, step by step (`provision.py` has the diagram, and the way)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.adoption import AdoptionActivities
from activities.auth import AuthActivities
from activities.models import (
    AgentInput,
    AuthInput,
    CloseInput,
    CloseKind,
    ReleaseInput,
    ReserveKind,
    ScalerInput,
    Slot,
)
from activities.slots import SlotActivities
from activities.warm import WarmActivities
from hatchway.model import (
    EndReason,
    ProvisionOutcome,
    ProvisionState,
)
from hatchway.transitions import SERVED
from workflows import endings
from workflows.evidence import cancelled
from workflows.following import MOST_REFUSALS, Following
from workflows.spawning import SpawnFailedError, spawn
from workflows.steps import (
    PROMPT,
    RESOLVE_LIMIT,
    call_off,
    last_words,
    store,
    through_cancel,
)
from workflows.taking_down import TakingDown

S = ProvisionState


class Path(TakingDown):
    async def _reserve(self) -> Slot:
        """Hold a slot, or wait in the line until one is handed over, or say why not."""
        gives_up_at = workflow.now() + self.request.wait_timeout
        patient = True
        refusals = 0
        self._say("a slot")
        while True:
            self._granted = False
            answer = await through_cancel(
                store(
                    SlotActivities.reserve,
                    self._reserve_input(gives_up_at, patient, takes_warm=refusals < MOST_REFUSALS),
                    summary="reserve a slot",
                )
            )
            if answer.kind is ReserveKind.HELD and answer.slot:
                return answer.slot
            bound = answer.slot.bound if answer.slot else None
            if self._over() and not bound:  # leaving lets go of a warm agent too, unless that is at the job already
                raise await self._leave_line(self._end())
            if answer.kind is ReserveKind.WARM and answer.slot and answer.warm:
                self._following = await Following.bind(self._agent_id, self.request, answer.warm, answer.slot.scaler)
                if self._following:
                    return answer.slot
                refusals += 1
                continue
            if answer.kind is not ReserveKind.WAITING:
                refused = endings.declined(answer, waited=None if patient else self.request.wait_timeout)
                # Refused before the line was looked at, as by a config in which nothing matches, it would still stand.
                raise refused if self._line_position is None else await self._leave_line(EndReason.DECLINED, refused)
            self._line_position = answer.line_position
            self._enter(S.QUEUED, f"a slot: {answer.message}", deadline=gives_up_at, upsert=True)
            # A last look without waiting takes up a grant that is on its way, or leaves the line.
            patient = await self._until(lambda: self._granted, gives_up_at - workflow.now(), "place in the line")
            if self._over():
                raise await self._leave_line(self._end())
            self._enter(S.RESERVING, "a slot")

    async def _serve(self) -> None:
        """From the held slot to the first fact that ends it: resolve, spawn, adoption, work."""
        slot = self.slot
        self._line_position = None
        if slot.closing_for:  # reset after its close: only the teardown is left
            self._seen.condemned = slot.closing_for
        if slot.adopted_by:
            self._seen.adopted_by = slot.adopted_by
        if self._over():
            return
        if not self._seen.adopted_by and not (await self._resolve_auth() and await self._spawn_and_await_adoption()):
            return
        if self.request.warm_for:
            self._bound = self._bound or slot.bound  # a bind may have come before the adoption's answer
            self._enter(S.ACTIVE, "a job", upsert=True)
            await self._stand_ready()
            self._deadline_at = _at(self._lifetime)
            self._say(f"the work of job {self._bound.job_id}" if self._bound else self._waiting_for)
        else:
            self._enter(S.ACTIVE, "the agent's work", deadline=_at(slot.max_lifetime), upsert=True)
        await self._work()

    async def _stand_ready(self) -> None:
        """Until a job binds this warm agent, or it may go. The row is the referee between the two: an agent that a job
        has taken is not released, whatever was signalled; whoever gives it back says once more that it may go.
        """
        await through_cancel(
            store(WarmActivities.offer, ScalerInput(scaler=self.slot.scaler), summary="offer it to whoever waits")
        )
        while not self._bound:
            await self._until(lambda: self._bound or self._releases > self._heeded)
            if self._bound or self._over():
                return
            self._heeded = self._releases
            answer = await through_cancel(
                store(
                    WarmActivities.withdraw,
                    AgentInput(agent_id=self._agent_id),
                    summary="let nobody take it any more",
                )
            )
            self._withdrawn = answer.withdrawn

    async def _follow(self, following: Following) -> ProvisionOutcome:
        """A warm agent does the job: end as it ends."""
        self._line_position = None
        self._seen.adopted_by = self.slot.adopted_by
        self._granted, self._stages.following = False, True
        self._enter(S.ACTIVE, f"the warm agent {following.warm.agent_id}, which has the job", upsert=True)
        ended = await following.until_ended(self._seen, self._nudged)
        self._seen.result = ended.result
        self._enter(S.CLOSED, "nothing")
        if ended.end_reason is not EndReason.COMPLETED and cancelled():
            raise asyncio.CancelledError
        if ended.end_reason not in SERVED:
            raise endings.followed(ended)
        return await self._end_as(ended.end_reason, ended.teardown)

    def _nudged(self) -> bool:
        nudged, self._granted = self._granted, False
        return nudged

    async def _resolve_auth(self) -> bool:
        """Check the job's registry credentials before anything is spawned. False: they were refused, or it is over."""
        container = self.request.container
        if container and container.auth:
            self._enter(S.RESOLVING, "the registry credentials of the job")
            auth = asyncio.create_task(
                store(
                    AuthActivities.resolve_container_auth,
                    AuthInput(agent_id=self._agent_id, container=container),
                    summary="resolve the job's registry credentials",
                    limit=RESOLVE_LIMIT,
                )
            )
            await self._until(auth.done)
            if self._over():
                call_off(auth)
                return False
            try:
                refused = auth.result().refused
            except ActivityError as e:
                refused = f"the registry credentials could not be resolved within {RESOLVE_LIMIT}: {last_words(e)}"
            if refused:
                self._seen.stage_ended(EndReason.AUTH_REFUSED, refused)
                return False
        return True

    async def _spawn_and_await_adoption(self) -> bool:
        """True once an agent is adopted; False when something else ended it first."""
        self._enter(S.SPAWNING, "the backend")
        self._spawning = asyncio.create_task(self._spawn())
        await self._until(lambda: self._adopted() or self._spawned)
        if not self._seen.adopted_by and not self._over():
            if self._seen.stage_end:
                return not await self._closed_unadopted(self._seen.stage_end)
            if not await self._adopted_in_time(self.slot.adoption_timeout):
                self._seen.stage_ended(EndReason.ADOPTION_TIMEOUT)
                return not await self._closed_unadopted(EndReason.ADOPTION_TIMEOUT)
        return not self._over()

    async def _adopted_in_time(self, limit: timedelta) -> bool:
        """False when nothing has ended the wait within `limit`. Only one that lasts is worth an upsert of its own."""
        ends_at = workflow.now() + limit
        self._enter(S.AWAITING_ADOPTION, "the agent to register", deadline=ends_at)
        if await self._until(self._adopted, min(limit, PROMPT), "adoption deadline"):
            return True
        if limit <= PROMPT:
            return False
        self._upsert()
        return await self._until(self._adopted, ends_at - workflow.now(), "adoption deadline")

    async def _work(self) -> None:
        """Until the first fact that ends it. A busy agent that is asked to go is left to finish its job first."""
        ends_at = _at(self._lifetime)
        in_time = await self._until(lambda: self._seen.release, _left(ends_at), "maximum lifetime")
        if in_time and not self._over() and (asked := self._seen.release):
            await through_cancel(
                store(SlotActivities.request_drain, AgentInput(agent_id=self._agent_id), summary="ask it to drain")
            )
            self._say(f"the job to finish: {asked.reason.value} was asked for by {asked.by}")
            in_time = await self._until(lambda: False, _left(ends_at), "maximum lifetime")
        if not in_time:
            self._seen.stage_ended(EndReason.MAX_LIFETIME)

    # ── the steps ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _spawn(self) -> None:
        """Call the backend; what comes of it is one more fact."""
        try:
            self._compute = await spawn(self._agent_id, self.request, self.slot, self._say)
        except SpawnFailedError as e:
            self._seen.stage_ended(EndReason.SPAWN_FAILED, str(e))
        except ActivityError:
            workflow.logger.info("the spawn was called off by the teardown that waits for it")

    async def _closed_unadopted(self, end: EndReason) -> bool:
        """Ask the referee: False when an adoption was quicker, which then stands."""
        await through_cancel(workflow.wait_condition(lambda: self._adopting == 0))
        if self._seen.adopted_by:
            return False
        closed = await through_cancel(
            store(
                AdoptionActivities.close,
                CloseInput(agent_id=self._agent_id, end_reason=end, only_unadopted=True),
                summary=f"close unless adopted: {end.value}",
            )
        )
        if closed.kind is CloseKind.ADOPTED:
            self._seen.adopted_by = closed.adopted_by
            self._seen.stage_end = self._seen.stage_error = None
            return False
        return True

    async def _leave_line(self, end: EndReason, refused: ApplicationError | None = None) -> BaseException:
        """Give the place in the line back, and answer what to end with."""
        await through_cancel(
            store(
                SlotActivities.release,
                ReleaseInput(agent_id=self._agent_id, end_reason=end),
                summary=f"leave the line: {end.value}",
            )
        )
        if end is EndReason.CANCELLED:
            return asyncio.CancelledError()
        return refused or endings.failed(end, self._seen, None)


def _at(limit: timedelta | None) -> datetime | None:
    return workflow.now() + limit if limit else None


def _left(ends_at: datetime | None) -> timedelta | None:
    return ends_at - workflow.now() if ends_at else None
