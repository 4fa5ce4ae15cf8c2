"""Reserve and release: the two ends of a slot, and what a release owes to the line."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client

from activities.errors import store_errors
from activities.models import (
    AgentInput,
    Binding,
    Decision,
    Done,
    ReleaseInput,
    ReserveAnswer,
    ReserveInput,
    ReserveKind,
    Slot,
    WarmAgent,
)
from activities.releasing import Releasing, decision, unheard
from hatchway import matching, warming
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config
from hatchway.errors import DeclineReason
from hatchway.labels import agent_labels
from hatchway.liveness import workflow_is_gone
from hatchway.matching import Candidate as LabelSetMatch
from hatchway.metrics import Metrics
from hatchway.model import (
    EndReason,
    ProvisionRequest,
)
from hatchway.pools import look_after_pool
from hatchway.resources import shape
from hatchway.store.adoption import Adoption, CloseAnswer
from hatchway.store.outcomes import Outcomes
from hatchway.store.reservations import ReserveAnswer as ReserveResult
from hatchway.store.slots import (
    AlreadyEnded,
    AtCapacity,
    BackingOff,
    BoundKind,
    Candidate,
    Draining,
    Held,
    JobHasAgent,
    JobServed,
    NeverFits,
    PoolRefused,
    Reservation,
    Slots,
    SpawnRow,
    Waiting,
    Warm,
)
from hatchway.teardowns import tear_down

BEHIND_EVERYBODY = 6
"""The priority of a warm pool's fill: a request's is 1 to 5."""


_BY_CONFIGURATION = (Waiting, AtCapacity, NeverFits, BackingOff, Draining, PoolRefused)
"""Answers that are about the candidates: other ones, of a newer configuration, may fare better."""


class SlotActivities:
    def __init__(
        self,
        slots: Slots,
        adoption: Adoption,
        outcomes: Outcomes,
        config: CurrentConfig,
        temporal: Client,
        *,
        metrics: Metrics,
        instance_id: str,
        platform: str,
    ) -> None:
        self._slots = slots
        self._adoption = adoption
        self._outcomes = outcomes
        self._config = config
        self._temporal = temporal
        self._metrics = metrics
        self._releasing = Releasing(slots, temporal, metrics)
        self._instance_id = instance_id
        self._platform = platform

    # ── reserve ─────────────────────────────────────────────────────────────────────────────────────────────────

    @activity.defn
    async def reserve(self, ask: ReserveInput) -> ReserveAnswer:
        """Hold a slot for the agent, or say where it stands in the line, or why it gets none."""
        with store_errors(self._metrics):
            version, config = await self._config.current()
            matches = self._matches(ask, config)
            if not matches:
                if await self._config.newer_than(version):
                    return await self.reserve(ask)
                return ReserveAnswer(kind=ReserveKind.NO_MATCHING_SCALER, message=self._why_no_match(ask, config))
            reservation = self._reservation(ask, version, config, matches)
            answer = await self._slots.reserve(reservation)
            if isinstance(answer, JobHasAgent) and (closed := await self._closed(answer)):
                # The slot first: the teardown may count as a failure that the scaler backs off after.
                answer = await self._slots.reserve(reservation)
                if closed.row and closed.row.teardown_facts:
                    await tear_down(self._temporal, self._slots, closed.row, EndReason.ADOPTION_TIMEOUT)
            await self._releasing.wake(answer.wake)
            if isinstance(answer, _BY_CONFIGURATION) and await self._config.newer_than(version):
                # An apply counts at once, also where this worker has not read it yet: it wakes waiters, and who hears
                # that there is no place for a job does not offer it again.
                return await self.reserve(ask)
            self._count_refusals(answer, reservation)
            if isinstance(answer, Held | Warm):
                await self._finish_older_teardowns(answer)
                return await self._given(ask, answer)
        match answer:
            case Waiting():
                await self._look_for_warm_ones_in_the_way(answer, reservation, config)
                return ReserveAnswer(
                    kind=ReserveKind.WAITING, message="; ".join(answer.bound), line_position=answer.position
                )
            case AlreadyEnded():
                return ReserveAnswer(
                    kind=ReserveKind.ALREADY_ENDED,
                    message=f"this agent has ended ({answer.end_reason}): offer the job again instead of resetting it",
                )
            case _:
                decline, message = _declined(answer)
                return ReserveAnswer(kind=ReserveKind.DECLINED, decline=decline, message=message)

    async def _given(self, ask: ReserveInput, answer: Held | Warm) -> ReserveAnswer:
        row = answer.row
        slot = self._slot(ask.request, row, await self._config.of_row(row))
        if isinstance(answer, Held):
            return ReserveAnswer(kind=ReserveKind.HELD, slot=slot)
        warm = WarmAgent(
            agent_id=row.agent_id, workflow_id=row.workflow_id or "", first_run_id=row.workflow_first_run_id or ""
        )
        return ReserveAnswer(kind=ReserveKind.WARM, slot=slot, warm=warm)

    async def _look_for_warm_ones_in_the_way(self, answer: Waiting, asked: Reservation, config: Config) -> None:
        """The head of a line does not wait long for room that idle warm agents hold. Those behind it follow it."""
        if answer.position != 1 or not any(scaler.warm_pool for scaler in config.scalers):
            return
        for candidate, bound in zip(asked.candidates, answer.bounds, strict=False):
            if bound.kind is BoundKind.FULL:
                await look_after_pool(self._temporal, candidate.scaler)

    def _count_refusals(self, answer: ReserveResult, reservation: Reservation) -> None:
        if isinstance(answer, Waiting | AtCapacity | NeverFits | BackingOff | Draining):
            for candidate, bound in zip(reservation.candidates, answer.bounds, strict=False):
                self._metrics.spawn_refused(candidate.scaler, f"{bound.scope} {bound.kind.value}")

    def _matches(self, ask: ReserveInput, config: Config) -> list[LabelSetMatch]:
        request = ask.request
        if request.warm_for is not None:
            return _of_pool(request.warm_for, config)
        return matching.match(
            request.labels, request.exclude_labels, request.role, config.scalers,
            default_platform=self._platform, agent_id=ask.agent_id,
        )  # fmt: skip

    def _why_no_match(self, ask: ReserveInput, config: Config) -> str:
        request = ask.request
        if request.warm_for is not None:
            return f"scaler {request.warm_for} has no warm pool in the configuration of now"
        return matching.no_match_message(
            matching.refusals(
                request.labels, request.exclude_labels, request.role, config.scalers,
                default_platform=self._platform, agent_id=ask.agent_id,
            )
        )  # fmt: skip

    def _reservation(
        self, ask: ReserveInput, version: int, config: Config, matches: list[LabelSetMatch]
    ) -> Reservation:
        request, defaults = ask.request, config.defaults.resources
        pool = matches[0].scaler.warm_pool if request.warm_for is not None else None
        candidates = []
        for match in matches:
            wants = shape(request.resources, match.label_set.resources, defaults)
            serves = ask.takes_warm and warming.serves(match.scaler, match.label_set, request, defaults)
            key = warming.key(match.scaler, match.label_set, defaults) if serves or pool else None
            candidates.append(
                Candidate(
                    scaler=match.scaler.name,
                    mcpu=wants.mcpu,
                    mem_bytes=wants.mem_bytes,
                    label_set=list(match.label_set.labels),
                    mandatory_labels=list(match.scaler.mandatory_labels),
                    backend_type=match.scaler.type.value,
                    provisioning_targets=[target.to_row() for target in match.scaler.provisioning_targets],
                    roles=list(match.scaler.roles),
                    takes_warm=key if serves else None,
                    made_warm=key if pool else None,
                )
            )
        return Reservation(
            agent_id=ask.agent_id,
            workflow_id=ask.workflow_id,
            workflow_first_run_id=ask.first_run_id,
            job_id=request.job_id,
            run_id=request.run_id,
            priority=BEHIND_EVERYBODY if pool else request.priority,
            wait=ask.wait,
            candidates=candidates,
            config_version=version,
            owner_instance_id=self._instance_id,
            reserved_for=ask.wait_left,
            wait_timeout=ask.wait_left,
            warm_target=pool.size if pool else None,
        )

    def _slot(self, request: ProvisionRequest, row: SpawnRow, config: Config) -> Slot:
        scaler = config.scaler(row.scaler)
        assert scaler is not None  # noqa: S101 - the row was written from this very version
        label_set = next(s for s in scaler.label_sets if list(s.labels) == list(row.label_set))
        lifetime = scaler.max_lifetime_seconds
        return Slot(
            scaler=scaler.name,
            labels=list(agent_labels(scaler, label_set, self._platform, row.agent_id)),
            mandatory_labels=list(scaler.mandatory_labels),
            spawn_timeout=request.spawn_timeout or timedelta(seconds=scaler.spawn_timeout_seconds),
            adoption_timeout=request.adoption_timeout or timedelta(seconds=scaler.adoption_timeout_seconds),
            max_lifetime=request.max_lifetime or (timedelta(seconds=lifetime) if lifetime else None),
            stop_grace=scaler.stop_grace,
            host_id=row.host_id,
            adopted_by=row.adopted_by,
            registration_id=row.registration_id,
            closing_for=EndReason(row.end_reason) if row.closing and row.end_reason else None,
            bound=binding(row),
        )

    # ── an older row of the same job ────────────────────────────────────────────────────────────────────────────

    async def _closed(self, other: JobHasAgent) -> CloseAnswer | None:
        """Close an older agent of this job that nobody adopted and whose workflow is gone. Without compute it holds no
        slot any more; what there is, the caller tears down.

        None: it is adopted, or its workflow lives, and the job has its agent.
        """
        if other.adopted or not await self._gone(other.workflow_id, other.first_run_id):
            return None
        closed = await self._adoption.close(other.agent_id, EndReason.ADOPTION_TIMEOUT.value, only_unadopted=True)
        if closed.kind == "adopted":
            return None
        if closed.row is None or closed.row.teardown_facts is None:
            freed = await self._slots.release(other.agent_id, EndReason.ADOPTION_TIMEOUT.value, None)
            await self._releasing.wake(freed.wake)
        return closed

    async def _finish_older_teardowns(self, held: Held | Warm) -> None:
        """An older agent of this job may be closing with nobody at it: its machine is still paid for."""
        for older in held.older:
            if await self._gone(older.workflow_id, older.workflow_first_run_id):
                end = EndReason(older.end_reason or EndReason.ADOPTION_TIMEOUT.value)
                await tear_down(self._temporal, self._slots, older, end)

    async def _gone(self, workflow_id: str | None, first_run_id: str | None) -> bool:
        return workflow_id is not None and await workflow_is_gone(self._temporal, workflow_id, first_run_id)

    # ── release ─────────────────────────────────────────────────────────────────────────────────────────────────

    @activity.defn
    async def release(self, ask: ReleaseInput) -> Decision:
        """The end of a slot whose compute is gone, or that never had any."""
        with store_errors(self._metrics):
            return await self._releasing.release(ask)

    @activity.defn
    async def record_outcome(self, ask: ReleaseInput) -> Decision:
        """Decide the outcome while the slot is still held: the job may be offered again."""
        with store_errors(self._metrics):
            outcome = await self._outcomes.decide(ask.agent_id, ask.end_reason.value, unheard(ask))
        return decision(ask, outcome.end_reason, outcome.result, outcome.adopted_by)

    @activity.defn
    async def request_drain(self, ask: AgentInput) -> Done:
        """Raise the flag that the agent sees in its next heartbeat answer."""
        with store_errors(self._metrics):
            await self._slots.request_drain(ask.agent_id)
        return Done()


def binding(row: SpawnRow) -> Binding | None:
    """The job that a warm agent's workflow has taken on."""
    if row.bound_at is None or row.bound_job_id is None or row.bound_by is None:
        return None
    return Binding(
        job_id=row.bound_job_id,
        run_id=row.run_id,
        follower_agent_id=row.bound_by,
        follower_workflow_id=row.bound_workflow_id or "",
    )


def _of_pool(scaler_name: str, config: Config) -> list[LabelSetMatch]:
    """What a fill makes: one label set of the scaler whose pool it is."""
    scaler = config.scaler(scaler_name)
    label_set = scaler.warm_label_set if scaler else None
    if scaler is None or label_set is None:
        return []
    return [LabelSetMatch(scaler, scaler.label_sets.index(label_set), label_set)]


def _declined(
    answer: AtCapacity | NeverFits | BackingOff | Draining | PoolRefused | JobHasAgent | JobServed,
) -> tuple[DeclineReason, str]:
    match answer:
        case AtCapacity(bound=bound):
            return DeclineReason.AT_CAPACITY, "at capacity: " + "; ".join(bound)
        case NeverFits(bound=bound):
            return DeclineReason.NEVER_FITS, "no scaler is large enough even when it is empty: " + "; ".join(bound)
        case BackingOff(bound=bound):
            return DeclineReason.BACKING_OFF, "backing off after failures: " + "; ".join(bound)
        case Draining(bound=bound):
            return DeclineReason.DRAINING, "takes no new work: " + "; ".join(bound)
        case PoolRefused(why=why):
            return DeclineReason.AT_CAPACITY, f"the warm pool gets no agent more now: {why}"
        case JobHasAgent(agent_id=agent_id):
            return DeclineReason.JOB_HAS_AGENT, f"the job has an agent already: {agent_id}"
        case JobServed():
            return DeclineReason.JOB_SERVED, "the job has been served already; it is not served again"
