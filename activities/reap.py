"""The sweep's step that reaps: agents that nobody answers for any more are condemned and torn down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.errors import store_errors
from activities.restoring import Restoring
from hatchway.config.current import CurrentConfig
from hatchway.errors import ErrorType, StoreContended, StoreUnreachable
from hatchway.metrics import Metrics
from hatchway.model import CondemnRequest, EndReason, ReleaseRequest, SweepRequest, SweptStep
from hatchway.reaper import RPC_LIMIT, Judged, Reaper
from hatchway.reaping import Action, Rule, Windows
from hatchway.store.adoption import Adoption
from hatchway.store.reaping import Reaping, Sentence
from hatchway.store.rows import SpawnRow
from hatchway.store.slots import Slots
from hatchway.teardowns import tear_down
from hatchway.tie import NamespaceTie, Tie

log = structlog.get_logger(__name__)

BY = "reaper"
CONDEMNED_AT_ONCE = 50
"""In one transaction: it holds their rows for some 10 ms."""

AT_ONCE = 8
"""Agents that are seen to side by side; each takes a connection for a moment."""

NAMED = 5
"""Agents whose trouble a failed pass tells of."""

DONE = ("condemned", "seen_to", "told_again", "blocked", "unknown", "unanswered")


@dataclass
class Pass:
    """What one pass has done, and whom it could not see to."""

    done: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)


class ReapActivities:
    def __init__(
        self,
        reaping: Reaping,
        slots: Slots,
        adoption: Adoption,
        config: CurrentConfig,
        tie: NamespaceTie,
        temporal: Client,
        metrics: Metrics,
        restoring: Restoring | None = None,
    ) -> None:
        self._reaping = reaping
        self._slots = slots
        self._adoption = adoption
        self._config = config
        self._tie = tie
        self._temporal = temporal
        self._metrics = metrics
        self._restoring = restoring
        self._warned: set[str] = set()

    @activity.defn(name="reap")
    async def reap(self, ask: SweepRequest) -> SweptStep:
        """Judge everybody, and see to those who are not spared.

        `condemned`: set closing, and their teardown begun. `seen_to`: closing, and nobody was at it. `told_again`: a
        completion or a condemnation whose signal was lost. Spared: `blocked`, as no gateway could have heard them;
        `unknown`, as nobody knows whose they are; `unanswered`, as Temporal did not say.
        """
        taken = Pass()
        with store_errors(self._metrics):
            await self._refuse_elsewhere()
            windows = await self._windows()
            reaper = Reaper(self._reaping, self._temporal, windows)
            async for page in reaper.judged(activity.heartbeat):
                condemned = [judged for judged in page if judged.judgement.rule.action is Action.CONDEMN]
                kept = await self._kept_by_their_workflows(condemned, taken)
                condemned = [judged for judged in condemned if judged.candidate.agent_id not in kept]
                for first in range(0, len(condemned), CONDEMNED_AT_ONCE):
                    await self._condemn(condemned[first : first + CONDEMNED_AT_ONCE], reaper, windows, taken)
                await self._side_by_side(self._see_to(judged, taken) for judged in page)
        if taken.failed:
            raise ApplicationError(
                "; ".join(f"agent {agent_id}: {why}" for agent_id, why in sorted(taken.failed.items())[:NAMED])
                + f" ({len(taken.failed)} in all; everybody else was seen to)",
                type=ErrorType.SWEEP_FAILED,
                non_retryable=True,
            )
        return SweptStep(done={what: taken.done[what] for what in DONE})

    async def _side_by_side(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def take(work: Coroutine[Any, Any, None]) -> None:
            async with at_once:
                activity.heartbeat()
                await work

        # To the end, whatever fails: none of them may go on when the activity has ended.
        for ended in await asyncio.gather(*(take(work) for work in works), return_exceptions=True):
            if ended is not None:
                raise ended

    async def _refuse_elsewhere(self) -> None:
        """To the database of another namespace, every workflow is gone: nobody may be judged by that."""
        tie = await self._tie.look()
        if tie is Tie.ELSEWHERE:
            raise ApplicationError(self._tie.words(tie), type=ErrorType.OTHER_NAMESPACE, non_retryable=True)

    async def _windows(self) -> Windows:
        """Of the configuration in force at this moment."""
        version, _ = await self._config.current()
        await self._config.newer_than(version)
        return Windows.of((await self._config.current())[1].reaper)

    async def _kept_by_their_workflows(self, condemned: Iterable[Judged], taken: Pass) -> set[str]:
        """Rows that are overdue by a restored backup, and agents that have registered since: they have their
        registration back, and live. Whose workflow's history cannot be read is left to the next pass.
        """
        overdue = [judged for judged in condemned if judged.judgement.rule is Rule.OVERDUE] if self._restoring else []
        kept = {judged.candidate.agent_id for judged in overdue}
        await self._side_by_side(self._ask_its_workflow(judged, kept, taken) for judged in overdue)
        return kept

    async def _ask_its_workflow(self, judged: Judged, kept: set[str], taken: Pass) -> None:
        assert self._restoring is not None  # noqa: S101 - who calls has looked
        row = judged.row
        with self._left_to_the_next_pass(row.agent_id, taken):
            if await self._restoring.restore_adoption(row.agent_id, row.workflow_id or ""):
                log.warning("adoption_restored", agent_id=row.agent_id, scaler=row.scaler, workflow_id=row.workflow_id)
            else:
                kept.discard(row.agent_id)

    async def _condemn(self, page: Sequence[Judged], reaper: Reaper, windows: Windows, taken: Pass) -> None:
        """Those of whom it is all still true; then their teardown begins, by their workflows or without them."""
        by_agent = {judged.candidate.agent_id: judged for judged in page}
        rows = await self._reaping.condemn(
            (
                Sentence(judged.candidate, judged.judgement.rule, judged.judgement.end)
                for judged in page
                if judged.judgement.end is not None
            ),
            windows,
        )
        taken.done["condemned"] += len(rows)
        await self._side_by_side(self._begin_teardown(row, by_agent[row.agent_id], reaper, taken) for row in rows)

    async def _begin_teardown(self, row: SpawnRow, judged: Judged, reaper: Reaper, taken: Pass) -> None:
        end = EndReason(row.end_reason or EndReason.HEARTBEAT_TIMEOUT)
        log.warning(
            "agent_condemned", agent_id=row.agent_id, scaler=row.scaler, job_id=row.bound_job_id,
            why=judged.judgement.rule.value, end_reason=end.value,
        )  # fmt: skip
        with self._left_to_the_next_pass(row.agent_id, taken):
            workflow = judged.candidate.workflow or await reaper.look(judged.candidate)
            if not workflow.open or not await self._signal_condemn(row, workflow.run_id, end):
                await tear_down(self._temporal, self._slots, row, end)

    async def _see_to(self, judged: Judged, taken: Pass) -> None:
        taken.done["unanswered"] += judged.unanswered
        with self._left_to_the_next_pass(judged.candidate.agent_id, taken):
            match judged.judgement.rule:
                case Rule.UNKNOWN:
                    taken.done["unknown"] += 1
                    self._warn(judged)
                case Rule.BLIND:
                    taken.done["blocked"] += 1
                case Rule.COMPLETED if await self._completed(judged):
                    taken.done["told_again"] += 1
                case Rule.UNHEARD if await self._tell_condemned(judged):
                    taken.done["told_again"] += 1
                case Rule.UNATTENDED | Rule.OVERTIME if await self._attend(judged):
                    taken.done["seen_to"] += 1

    @contextmanager
    def _left_to_the_next_pass(self, agent_id: str, taken: Pass) -> Iterator[None]:
        """What stands in the way of one agent stops no other: the row says what is to be done, to the next pass."""
        try:
            yield
        except StoreUnreachable:
            raise
        except (RPCError, StoreContended) as e:
            taken.done["unanswered"] += 1
            log.warning("reaper_unanswered", agent_id=agent_id, reason=str(e))
        # A row that a hand or a newer release has written must not keep its neighbours for ever. It fails the step once
        # everybody else has been seen to.
        except Exception as e:
            taken.failed[agent_id] = f"{type(e).__name__}: {e}"
            log.exception("reaper_failed", agent_id=agent_id)

    async def _attend(self, judged: Judged) -> bool:
        """Begin the teardown of a row that is closing with nobody at it. False: somebody was quicker."""
        row = await self._slots.get(judged.candidate.agent_id)
        if row is None or not row.closing or judged.judgement.end is None:
            return False
        await tear_down(self._temporal, self._slots, row, judged.judgement.end)
        return True

    async def _tell_condemned(self, judged: Judged) -> bool:
        workflow, end = judged.candidate.workflow, judged.judgement.end
        if workflow is None or end is None:
            return False
        return await self._signal_condemn(judged.row, workflow.run_id, end)

    async def _signal_condemn(self, row: SpawnRow, run_id: str | None, end: EndReason) -> bool:
        """False: it has closed meanwhile."""
        request = CondemnRequest(agent_id=row.agent_id, reason=end)
        return await self._signal(row.workflow_id or "", run_id, "condemn", request)

    async def _completed(self, judged: Judged) -> bool:
        """Its workflow hears of the completion again; one that is gone is done without."""
        row, workflow = judged.row, judged.candidate.workflow
        if workflow is None:
            return False
        request = ReleaseRequest(agent_id=row.agent_id, reason=EndReason.COMPLETED, by=BY)
        if workflow.open and await self._signal(row.workflow_id or "", workflow.run_id, "release", request):
            return True
        closed = await self._adoption.close(row.agent_id, EndReason.COMPLETED.value, only_unadopted=False)
        if closed.row is not None:
            await tear_down(self._temporal, self._slots, closed.row, EndReason.COMPLETED)
        return closed.row is not None

    async def _signal(self, workflow_id: str, run_id: str | None, name: str, request: object) -> bool:
        """Pinned to its run: another start of the same id has another agent. False: it has closed meanwhile."""
        handle = self._temporal.get_workflow_handle(workflow_id, run_id=run_id)
        try:
            await handle.signal(name, request, rpc_timeout=RPC_LIMIT)
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    def _warn(self, judged: Judged) -> None:
        """Once in a worker's life: it stays so until an operator has come by."""
        if judged.candidate.agent_id not in self._warned:
            self._warned.add(judged.candidate.agent_id)
            log.warning("agent_of_unknown_owner", agent_id=judged.candidate.agent_id, why=Rule.UNKNOWN.value)
