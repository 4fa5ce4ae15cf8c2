"""ProvisionWorkflow: one agent for one job, from the request to the released slot.

       ┌── queued ◄──────────────┐ no room, backing off or draining, and willing to wait
       ▼                         │
    reserving ── no match / declined ─────────────────────► failed
       │ slot held
    resolving ── reference missing, malformed, refused ───► close ► release ► failed
       │
    spawning  ── permanent error, attempts spent, deadline ► close ► teardown ► failed
       │
    awaiting-adoption ── deadline, compute exited ────────► close ► teardown ► failed
       │ adopt
    active ── completed, release, compute exited, condemn, max lifetime, cancel
       ▼
    tearing-down ─────────────────────────────────────────► closed

Signals only record. The first recorded fact starts the teardown; the outcome is decided once, when the compute is gone,
from all the facts that are known by then:

    completion of an adopted agent > cancel > compute exited > condemn > other release > the stage's own end

The store is the referee between an adoption and a deadline: `close` says who won. An adoption proves the spawn, whatever
the spawn call says. What must not be lost to a cancel (reserve, close, teardown, release) is awaited `through_cancel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    FailureError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.workflow import ActivityCancellationType, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel, ValidationError

    from activities.adoption import AdoptionActivities
    from activities.auth import AuthActivities
    from activities.compute import ComputeActivities
    from activities.models import (
        AdoptInput,
        AdoptKind,
        AgentInput,
        AuthInput,
        CloseInput,
        CloseKind,
        Completion,
        ReleaseInput,
        ReserveAnswer,
        ReserveInput,
        ReserveKind,
        Slot,
        SpawnInput,
        TeardownInput,
    )
    from activities.slots import SlotActivities
    from hatchway import search_attributes
    from hatchway.errors import DeclineReason, ErrorType
    from hatchway.model import (
        AdoptedSpec,
        AdoptRequest,
        ComputeExit,
        ComputeRef,
        CondemnRequest,
        EndReason,
        ForgetRequest,
        GrantedRequest,
        JobResult,
        ProvisionOutcome,
        ProvisionRequest,
        ProvisionState,
        ProvisionStatus,
        ReleaseRequest,
        ScaleDownReason,
        StageEntry,
        StageTimes,
        TeardownFacts,
        TeardownRequest,
        TeardownState,
        WaitRequest,
    )
    from hatchway.task_queues import host_queue, spawn_queue
    from hatchway.transitions import ADOPTABLE, BENIGN, SERVED, TRANSITIONS, Facts, decide, failure_type, wire_reason
    from workflows import page
    from workflows.requests import parse, refuse_timeouts, validated
    from workflows.steps import (
        FIRST_ROUND,
        HEARTBEAT_TIMEOUT,
        NOBODY_POLLS_AFTER,
        RESOLVE_LIMIT,
        SPAWN_ATTEMPTS,
        SPAWN_RETRY_INITIAL,
        SPAWN_RETRY_MAXIMUM,
        TEARDOWN_RETRY,
        last_words,
        nobody_took_it,
        store,
        through_cancel,
    )
    from workflows.teardown import TeardownWorkflow

S = ProvisionState
M = TypeVar("M", bound=BaseModel)

RELEASES = frozenset({
    EndReason.COMPLETED, EndReason.IDLE, EndReason.DRAINED, EndReason.RELEASED, EndReason.OPERATOR,
})  # fmt: skip
"""The reasons that a `release` may carry; every other end has a fact of its own."""


@workflow.defn(name="ProvisionWorkflow", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class ProvisionWorkflow:
    @workflow.init
    def __init__(self, request: Any = None) -> None:
        self._agent_id = "scaler-" + workflow.info().original_execution_run_id.replace("-", "")
        self._request: ProvisionRequest | None = None
        self._slot: Slot | None = None
        self._stages = [StageEntry(state=S.RESERVING, since=workflow.now())]
        # facts
        self._adopted_by: str | None = None
        self._registration_id: str | None = None
        self._completed = False
        self._completion: Completion | None = None
        self._exit: ComputeExit | None = None
        self._condemned: EndReason | None = None
        self._release: ReleaseRequest | None = None
        self._stage_end: EndReason | None = None
        self._granted = False
        self._forgotten = False
        # what is going on
        self._adopting = 0
        self._spawning: asyncio.Task[None] | None = None
        self._compute: ComputeRef | None = None
        self._failure: ApplicationError | None = None
        # what the page says
        self._waiting_for = "a slot"
        self._deadline_at: datetime | None = None
        self._line_position: int | None = None
        self._last_error: str | None = None

    # ── the path ────────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.run
    async def run(self, request: Any = None) -> ProvisionOutcome:
        """Provision one agent. `request` is a ProvisionRequest; it is validated here, so that it may come from anywhere.

        Completed: an agent was adopted and later released. Every other end is an ApplicationError of an `ErrorType`.
        """
        try:
            self._request = validated(ProvisionRequest, request)
            refuse_timeouts(workflow.info())
            self._slot = await self._reserve()
            await self._serve()
            return await self._tear_down()
        except (FailureError, asyncio.CancelledError) as end:
            # Whoever waits for the adoption hears the same end. A bug is neither: it wedges, and resumes after a fix.
            self._failure = self._failure or _heard(end)
            await through_cancel(workflow.wait_condition(workflow.all_handlers_finished))
            raise

    async def _reserve(self) -> Slot:
        """Hold a slot, or wait in the line until one is handed over, or say why not."""
        gives_up_at = workflow.now() + self.request.wait_timeout
        patient = True
        while True:
            self._granted = False
            answer = await through_cancel(
                store(SlotActivities.reserve, self._reserve_input(gives_up_at, patient), summary="reserve a slot")
            )
            if answer.kind is ReserveKind.HELD and answer.slot:
                return answer.slot
            if answer.kind is not ReserveKind.WAITING:
                raise self._declined(answer, in_time=patient)
            self._line_position, self._last_error = answer.line_position, answer.message
            if self._state is not S.QUEUED:
                self._enter(S.QUEUED, f"a slot: {answer.message}", deadline=gives_up_at, upsert=True)
            # A last look without waiting takes up a grant that is on its way, or leaves the line.
            patient = await self._until(lambda: self._granted, gives_up_at - workflow.now(), "place in the line")
            if self._over():
                raise await self._leave_line()
            self._enter(S.RESERVING, "a slot")

    async def _serve(self) -> None:
        """From the held slot to the first fact that ends it: resolve, spawn, adoption, work."""
        slot = self.slot
        self._line_position = self._last_error = None
        if slot.closing_for:  # reset after its close: only the teardown is left
            self._condemned = slot.closing_for
        if slot.adopted_by:
            self._adopted_by, self._registration_id = slot.adopted_by, slot.registration_id
        if self._over():
            return
        if not self._adopted_by and not (await self._resolve_auth() and await self._spawn_and_await_adoption()):
            return
        self._enter(S.ACTIVE, "the agent's work", deadline=_at(slot.max_lifetime), upsert=True)
        await self._work()

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
                auth.cancel()
                return False
            try:
                refused = auth.result().refused
            except ActivityError as e:
                refused = f"the registry credentials could not be resolved within {RESOLVE_LIMIT}: {last_words(e)}"
            if refused:
                self._last_error = refused
                self._stage_end = EndReason.AUTH_REFUSED
                return False
        return True

    async def _spawn_and_await_adoption(self) -> bool:
        """True once an agent is adopted; False when something else ended it first."""
        self._enter(S.SPAWNING, "the backend")
        self._spawning = asyncio.create_task(self._spawn())
        await self._until(lambda: bool(self._adopted_by) or self._spawned)
        if not self._adopted_by and not self._over():
            if self._stage_end:
                return not await self._closed_unadopted(self._stage_end)
            limit = self.slot.adoption_timeout
            self._enter(S.AWAITING_ADOPTION, "the agent to register", deadline=_at(limit), upsert=True)
            if not await self._until(lambda: bool(self._adopted_by), limit, "adoption deadline"):
                self._stage_end = EndReason.ADOPTION_TIMEOUT
                return not await self._closed_unadopted(EndReason.ADOPTION_TIMEOUT)
        return not self._over()

    async def _work(self) -> None:
        """Until the first fact that ends it. A busy agent that is asked to go is left to finish its job first."""
        ends_at = _at(self.slot.max_lifetime)
        drain_raised = False
        while not self._over():
            left = ends_at - workflow.now() if ends_at else None
            in_time = await self._until(lambda: bool(self._release) and not drain_raised, left, "maximum lifetime")
            if not in_time:
                self._stage_end = EndReason.MAX_LIFETIME
                return
            if self._release and not drain_raised and not self._over():
                await through_cancel(
                    store(SlotActivities.request_drain, AgentInput(agent_id=self._agent_id), summary="ask it to drain")
                )
                drain_raised = True
                self._say(f"the job to finish: {self._release.reason.value} was asked for by {self._release.by}")

    async def _tear_down(self) -> ProvisionOutcome:
        """Close, destroy, decide, release; then end with the outcome."""
        self._enter(S.TEARING_DOWN, "the backend to confirm that the compute is gone")
        closed = await through_cancel(
            store(
                AdoptionActivities.close,
                CloseInput(agent_id=self._agent_id, end_reason=decide(self._facts())),
                summary=f"close: {decide(self._facts()).value}",
            )
        )
        await through_cancel(self._settle_spawn())
        facts = closed.facts or self._known_facts()
        teardown = await through_cancel(self._first_round(facts)) if facts else TeardownState.CONFIRMED
        await through_cancel(workflow.wait_condition(lambda: self._adopting == 0))
        end = await through_cancel(self._decide_and_release(facts, teardown))
        self._enter(S.CLOSED, "nothing")
        return await self._end_as(end, teardown)

    async def _end_as(self, end: EndReason, teardown: TeardownState) -> ProvisionOutcome:
        """Completed, Cancelled, or the typed failure."""
        if end is EndReason.CANCELLED:
            raise asyncio.CancelledError
        if not (self._adopted_by and end in SERVED):
            raise self._failed(end)
        await through_cancel(workflow.wait_condition(workflow.all_handlers_finished))
        return ProvisionOutcome(
            agent_id=self._agent_id,
            scaler=self.slot.scaler,
            result=self._completion.result if self._completion else JobResult.UNKNOWN,
            end_reason=end,
            stages=self._stage_times(),
            teardown=teardown,
        )

    # ── the steps ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _spawn(self) -> None:
        """Call the backend until it answered, failed for good, or nobody was there to ask.

        The host that an attempt is about to have its effect on is stamped on the row before the effect; an attempt
        elsewhere is told so, and the next one goes to that host's own queue.
        """
        slot, attempts = self.slot, SPAWN_ATTEMPTS
        queue = host_queue(slot.host_id) if slot.host_id else spawn_queue(slot.scaler)
        gives_up_at = workflow.now() + self.request.wait_timeout
        patience = NOBODY_POLLS_AFTER
        while True:
            try:
                answer = await workflow.execute_activity_method(
                    ComputeActivities.spawn,
                    SpawnInput(
                        agent_id=self._agent_id,
                        request=self.request,
                        spawn_timeout=slot.spawn_timeout,
                        adoption_timeout=slot.adoption_timeout,
                    ),
                    task_queue=queue,
                    schedule_to_start_timeout=min(patience, max(gives_up_at - workflow.now(), timedelta(seconds=1))),
                    start_to_close_timeout=slot.spawn_timeout,
                    heartbeat_timeout=min(HEARTBEAT_TIMEOUT, slot.spawn_timeout),
                    retry_policy=RetryPolicy(
                        initial_interval=SPAWN_RETRY_INITIAL,
                        maximum_interval=SPAWN_RETRY_MAXIMUM,
                        maximum_attempts=attempts,
                    ),
                    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                    summary=f"spawn on {queue}",
                )
            except ActivityError as e:
                if is_cancelled_exception(e):
                    return
                cause = e.cause
                if isinstance(cause, ApplicationError) and cause.type == ErrorType.BOUND_TO_HOST:
                    host_id, tried = cause.details
                    queue, attempts = host_queue(host_id), max(1, attempts - tried + 1)
                    continue
                if nobody_took_it(e) and workflow.now() < gives_up_at:
                    self._last_error = f"no worker has taken the spawn from task queue {queue}"
                    self._say(f"a worker: nobody polls {queue}, or all of its workers are busy")
                    patience = self.request.wait_timeout
                    continue
                self._last_error = (
                    f"nobody polled {queue} in time" if nobody_took_it(e) else f"spawn failed: {last_words(e)}"
                )
                self._stage_end = EndReason.SPAWN_FAILED
                return
            self._compute = answer.compute
            return

    async def _closed_unadopted(self, end: EndReason) -> bool:
        """Ask the referee: False when an adoption was quicker, which then stands."""
        await through_cancel(workflow.wait_condition(lambda: self._adopting == 0))
        if self._adopted_by:
            return False
        closed = await through_cancel(
            store(
                AdoptionActivities.close,
                CloseInput(agent_id=self._agent_id, end_reason=end, only_unadopted=True),
                summary=f"close unless adopted: {end.value}",
            )
        )
        if closed.kind is CloseKind.ADOPTED:
            self._adopted_by = closed.adopted_by
            self._stage_end = None
            return False
        return True

    async def _settle_spawn(self) -> None:
        """Stop a spawn that is still under way, and wait until it has let go: a teardown comes after it, not beside it."""
        if self._spawning and not self._spawning.done():
            self._spawning.cancel()
            await workflow.wait([self._spawning])

    def _known_facts(self) -> TeardownFacts | None:
        """Where the compute is when the row has gone from under us but the spawn had answered."""
        compute = self._compute
        return compute and TeardownFacts(backend_type=compute.backend, host_id=compute.host_id, compute=compute)

    async def _first_round(self, facts: TeardownFacts) -> TeardownState:
        """Destroy within the first round, or hand over to TeardownWorkflow and be done: the slot stays held."""
        queue = host_queue(facts.host_id)
        limit = FIRST_ROUND + self.slot.stop_grace
        destroying = asyncio.create_task(
            workflow.execute_activity_method(
                ComputeActivities.teardown,
                TeardownInput(agent_id=self._agent_id, facts=facts, reason=self._wire_reason()),
                task_queue=queue,
                schedule_to_close_timeout=limit,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=TEARDOWN_RETRY,
                summary=f"tear down on {queue}",
            )
        )
        await workflow.wait_condition(lambda: destroying.done() or self._forgotten)
        if not destroying.done():
            destroying.cancel()
            return TeardownState.PENDING
        try:
            torn = destroying.result()
        except ActivityError as e:
            self._last_error = f"nobody polls host {facts.host_id}" if nobody_took_it(e) else last_words(e)
            self._say(f"TeardownWorkflow teardown/{self._agent_id}, which goes on trying")
            return TeardownState.PENDING
        self._record_completion(torn.completion)
        return torn.teardown

    async def _decide_and_release(self, facts: TeardownFacts | None, teardown: TeardownState) -> EndReason:
        """The outcome, from every fact, written down once; then the slot is free, or handed over while it is not."""
        pending = teardown is TeardownState.PENDING and not self._forgotten
        if teardown is TeardownState.PENDING:
            answer = await store(
                SlotActivities.completion, AgentInput(agent_id=self._agent_id), summary="look for a completion"
            )
            self._record_completion(answer.completion)
        end = decide(self._facts())
        result = self._completion.result if self._completion and end is EndReason.COMPLETED else None
        outcome = ReleaseInput(agent_id=self._agent_id, end_reason=end, result=result)
        if pending and facts:
            await store(SlotActivities.record_outcome, outcome, summary=f"decide: {end.value}")
            await self._hand_over(facts, end)
        else:
            await store(SlotActivities.release, outcome, summary=f"release the slot: {end.value}")
        return end

    async def _hand_over(self, facts: TeardownFacts, end: EndReason) -> None:
        try:
            await workflow.start_child_workflow(
                TeardownWorkflow.run,
                TeardownRequest(agent_id=self._agent_id, facts=facts, reason=self._wire_reason(), end_reason=end),
                id=f"teardown/{self._agent_id}",
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{self._agent_id} on host {facts.host_id}: {end.value}",
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("teardown/%s is already under way", self._agent_id)

    async def _leave_line(self) -> BaseException:
        """Give the place in the line back, and answer what to end with."""
        end = decide(self._facts())
        await through_cancel(
            store(
                SlotActivities.release,
                ReleaseInput(agent_id=self._agent_id, end_reason=end),
                summary=f"leave the line: {end.value}",
            )
        )
        return asyncio.CancelledError() if end is EndReason.CANCELLED else self._failed(end)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────

    @workflow.update(description="The agent has reached a gateway instance and asks to be this provision's agent.")
    async def adopt(self, request: Any) -> AdoptedSpec:
        adopt = parse(AdoptRequest, request)
        self._adopting += 1
        try:
            answer = await store(
                AdoptionActivities.adopt,
                AdoptInput(
                    agent_id=self._agent_id, instance_id=adopt.instance_id, registration_id=adopt.registration_id
                ),
                summary=f"adopt through {adopt.instance_id}",
            )
            if answer.kind is AdoptKind.ADOPTED:
                self._adopted_by, self._registration_id = adopt.instance_id, adopt.registration_id
        finally:
            self._adopting -= 1
        if answer.kind is AdoptKind.NO_SUCH_PROVISION:
            raise _refused(ErrorType.NO_SUCH_PROVISION, "this provision has no row any more")
        if answer.kind is AdoptKind.TEARING_DOWN:
            raise _refused(ErrorType.TEARING_DOWN, f"this agent is being torn down: {answer.detail}")
        if answer.kind is AdoptKind.ADOPTED_BY_OTHER:
            raise _refused(ErrorType.ADOPTED_BY_OTHER, "another process has registered as this agent and is alive")
        return self._spec()

    @adopt.validator
    def _may_adopt(self, request: Any) -> None:
        adopt = parse(AdoptRequest, request)
        if adopt.agent_id != self._agent_id:
            raise _refused(ErrorType.NO_SUCH_PROVISION, f"this provision's agent is {self._agent_id}")
        if self._state not in ADOPTABLE:
            kind = ErrorType.TEARING_DOWN if self._state in (S.TEARING_DOWN, S.CLOSED) else ErrorType.NO_SUCH_PROVISION
            raise _refused(kind, f"no agent can be adopted while the provision is {self._state.value}")

    @workflow.update(description="Waits until an agent is adopted, and answers what it is; fails with the provision.")
    async def wait_adopted(self, request: Any = None) -> AdoptedSpec:
        parse(WaitRequest, request or {})
        await workflow.wait_condition(lambda: bool(self._adopted_by and self._slot) or self._failure is not None)
        if self._adopted_by and self._slot:
            return self._spec()
        raise self._failure or _refused(ErrorType.RELEASED, "the provision has ended")

    @workflow.signal(description="This agent may go: its job is complete, or it is idle, drained or not wanted any more.")
    def release(self, request: Any) -> None:
        release = self._mine(ReleaseRequest, request, "release")
        if release and release.reason not in RELEASES:
            workflow.logger.warning("a release does not carry the reason %s: ignored", release.reason.value)
        elif release and release.reason is EndReason.COMPLETED:
            self._completed = True
        elif release and (self._release is None or (release.now and not self._release.now)):
            self._release = release

    @workflow.signal(description="The reaper has condemned this agent, on facts that it has just checked.")
    def condemn(self, request: Any) -> None:
        if condemn := self._mine(CondemnRequest, request, "condemn"):
            self._condemned = self._condemned or condemn.reason

    @workflow.signal(description="The agent's container or process is gone.")
    def compute_exited(self, request: Any) -> None:
        if exited := self._mine(ComputeExit, request, "compute_exited"):
            self._exit = self._exit or exited

    @workflow.signal(description="The line has handed a slot over: take it up.")
    def granted(self, request: Any) -> None:
        if self._mine(GrantedRequest, request, "granted"):
            self._granted = True

    @workflow.signal(description="An operator's word that the compute is gone and nobody can confirm it.")
    def forget_compute(self, request: Any) -> None:
        if forget := self._mine(ForgetRequest, request, "forget_compute"):
            workflow.logger.warning("the compute of %s is forgotten, by %s", self._agent_id, forget.by)
            self._forgotten = True

    @workflow.query(description="What it is doing, since when, for whom it waits, and what one can do.")
    def status(self, request: Any = None) -> ProvisionStatus:
        return ProvisionStatus(
            agent_id=self._agent_id,
            state=self._state,
            since=self._stages[-1].since,
            scaler=self._slot.scaler if self._slot else None,
            waiting_for=self._waiting_for,
            deadline_at=self._deadline_at,
            line_position=self._line_position,
            last_error=self._last_error,
            compute=self._compute,
            adopted_by=self._adopted_by,
            stages=self._stages,
            next_step=page.NEXT_STEP[self._state],
        )

    def _mine(self, model: type[M], request: Any, name: str) -> M | None:
        """The signal's payload if it is well-formed and meant for this agent: workflow ids are per job, agents are not."""
        try:
            message = model.model_validate(request)
        except ValidationError as e:
            workflow.logger.warning("signal %s ignored: %d malformed fields", name, e.error_count())
            return None
        if getattr(message, "agent_id", None) != self._agent_id:
            workflow.logger.warning("signal %s ignored: it is for another agent", name)
            return None
        return message

    # ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def request(self) -> ProvisionRequest:
        assert self._request is not None  # noqa: S101 - validated before anything else runs
        return self._request

    @property
    def slot(self) -> Slot:
        assert self._slot is not None  # noqa: S101 - held before anything that needs it runs
        return self._slot

    @property
    def _state(self) -> ProvisionState:
        return self._stages[-1].state

    @property
    def _spawned(self) -> bool:
        return self._spawning is not None and self._spawning.done()

    def _busy(self) -> bool:
        return bool(self._adopted_by and self.request.job_id and not self._completed)

    def _facts(self) -> Facts:
        return Facts(
            adopted=bool(self._adopted_by),
            completed=self._completed,
            completion=self._completion.result if self._completion else None,
            cancelled=workflow.cancellation_reason() is not None,
            exited=self._exit is not None,
            condemned=self._condemned,
            released=self._release.reason if self._release else None,
            stage_end=self._stage_end,
        )

    def _over(self) -> bool:
        """A fact that ends the provision now is known. A release of a busy agent is not one, unless it says `now`."""
        return bool(
            (self._completed and self._adopted_by)
            or workflow.cancellation_reason() is not None
            or self._exit
            or self._condemned
            or (self._release and (self._release.now or not self._busy()))
        )

    def _record_completion(self, completion: Completion | None) -> None:
        if completion:
            self._completed, self._completion = True, completion

    async def _until(self, condition: Callable[[], Any], timeout: timedelta | None = None, summary: str = "") -> bool:
        """Wait for the condition or for the end; False when the time ran out first. A cancel is a fact, not an exception."""
        try:
            await workflow.wait_condition(
                lambda: bool(condition()) or self._over(), timeout=timeout, timeout_summary=summary or None
            )
        except asyncio.TimeoutError:
            return False
        except asyncio.CancelledError:
            return True
        return True

    # ── words ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _enter(
        self, state: ProvisionState, waiting_for: str, *, deadline: datetime | None = None, upsert: bool = False
    ) -> None:
        if state not in TRANSITIONS[self._state]:
            raise RuntimeError(f"a provision does not go from {self._state.value} to {state.value}")
        self._stages.append(StageEntry(state=state, since=workflow.now()))
        self._deadline_at = deadline
        self._say(waiting_for)
        if upsert:
            self._upsert()

    def _say(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        workflow.set_current_details(page.render(self.status()))

    def _upsert(self) -> None:
        """Costs an action each, so only where people filter."""
        keys = [
            search_attributes.STATE.value_set(self._state.value),
            search_attributes.AGENT_ID.value_set(self._agent_id),
        ]
        if self._slot:
            keys.append(search_attributes.SCALER.value_set(self._slot.scaler))
        if self.request.run_id:
            keys.append(search_attributes.RUN_ID.value_set(self.request.run_id))
        workflow.upsert_search_attributes(keys)

    def _stage_times(self) -> StageTimes:
        seconds = dict.fromkeys(StageTimes.model_fields, 0.0)
        for entry, following in zip(self._stages, self._stages[1:], strict=False):
            seconds[entry.state.value.replace("-", "_")] += (following.since - entry.since).total_seconds()
        return StageTimes(**seconds)

    def _reserve_input(self, gives_up_at: datetime, patient: bool) -> ReserveInput:
        info = workflow.info()
        return ReserveInput(
            agent_id=self._agent_id,
            workflow_id=info.workflow_id,
            first_run_id=info.first_execution_run_id,
            request=self.request,
            wait=patient and self.request.on_capacity.value == "wait",
            wait_left=max(gives_up_at - workflow.now(), timedelta(seconds=1)),
        )

    def _wire_reason(self) -> ScaleDownReason:
        return wire_reason(decide(self._facts()), adopted=bool(self._adopted_by))

    def _spec(self) -> AdoptedSpec:
        return AdoptedSpec(
            agent_id=self._agent_id,
            scaler=self.slot.scaler,
            labels=self.slot.labels,
            mandatory_labels=self.slot.mandatory_labels,
            job_id=self.request.job_id,
            run_id=self.request.run_id,
            role=self.request.role,
        )

    def _declined(self, answer: ReserveAnswer, *, in_time: bool) -> ApplicationError:
        if answer.kind is ReserveKind.NO_MATCHING_SCALER:
            return _ended(ErrorType.NO_MATCHING_SCALER, answer.message)
        if answer.kind is ReserveKind.ALREADY_ENDED:
            return _ended(ErrorType.ALREADY_ENDED, answer.message)
        detail = answer.decline or DeclineReason.AT_CAPACITY
        if not in_time and detail is DeclineReason.AT_CAPACITY:
            waited = f"{self.request.wait_timeout.total_seconds():g} s"
            return _ended(ErrorType.DECLINED, f"no slot within {waited}: {answer.message}", DeclineReason.WAIT_TIMEOUT)
        return _ended(ErrorType.DECLINED, answer.message, detail)

    def _failed(self, end: EndReason) -> ApplicationError:
        return _ended(failure_type(end, bool(self._adopted_by)), self._why(end), end)

    def _why(self, end: EndReason) -> str:
        """The sentence that a dispatcher shows to whoever waits for the job."""
        match end:
            case EndReason.COMPUTE_EXITED:
                code = "an unknown exit code" if self._exit is None or self._exit.exit_code is None else self._exit.exit_code
                before = "after it had registered" if self._adopted_by else "before it registered"
                tail = f"; its last output:\n{self._exit.log_tail}" if self._exit and self._exit.log_tail else ""
                return f"the agent's compute exited with {code} {before}{tail if not self._adopted_by else ''}"
            case EndReason.ADOPTION_TIMEOUT:
                limit = self.slot.adoption_timeout.total_seconds()
                return f"the agent did not register within {limit:g} s of its spawn; can it reach the gateway?"
            case EndReason.HEARTBEAT_TIMEOUT:
                return "the agent stopped sending heartbeats and was given up"
            case EndReason.MAX_LIFETIME:
                return f"the agent was still at work after its maximum lifetime of {self.slot.max_lifetime}"
            case EndReason.SPAWN_FAILED | EndReason.AUTH_REFUSED:
                return self._last_error or end.value
            case _:
                by = f", by {self._release.by}" if self._release else ""
                return f"released before an agent was adopted: {end.value}{by}"


def _at(limit: timedelta | None) -> datetime | None:
    return workflow.now() + limit if limit else None


def _refused(kind: ErrorType, message: str) -> ApplicationError:
    return ApplicationError(message, type=kind, non_retryable=True)


def _ended(kind: ErrorType, message: str, *details: str) -> ApplicationError:
    category = ApplicationErrorCategory.BENIGN if kind in BENIGN else ApplicationErrorCategory.UNSPECIFIED
    return ApplicationError(message, *details, type=kind, non_retryable=True, category=category)


def _heard(end: BaseException) -> ApplicationError:
    """What a waiting dispatcher is told."""
    if isinstance(end, ApplicationError):
        return end
    return _refused(ErrorType.RELEASED, "the provision was cancelled")
