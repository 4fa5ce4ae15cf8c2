"""Warm agents: a job's binding to one, the look at one that is followed, and the care for a pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.errors import store_errors
from activities.models import (
    AgentInput,
    BindAnswer,
    BindingAnswer,
    BindingInput,
    BindInput,
    Done,
    FollowedAnswer,
    FollowedInput,
    LetGoInput,
    PoolAnswer,
    ScalerInput,
    WithdrawAnswer,
)
from activities.slots import binding
from hatchway import warming
from hatchway.client import CLOSED_UNDER_THE_UPDATE
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config
from hatchway.errors import ErrorType
from hatchway.liveness import workflow_is_gone
from hatchway.metrics import Metrics
from hatchway.model import (
    AdoptedSpec,
    BindRequest,
    EndReason,
    FollowedEnded,
    JobResult,
    ReleaseRequest,
    SweepRequest,
    SweptStep,
    TeardownState,
)
from hatchway.pools import look_after_pool, start_warm
from hatchway.resources import shape
from hatchway.store.adoption import Adoption
from hatchway.store.outcomes import Outcomes
from hatchway.store.slots import Slots
from hatchway.store.warm import Standing, WarmAgents
from hatchway.teardowns import tear_down
from hatchway.waking import RPC_LIMIT, wake

HEAD_PATIENCE = timedelta(seconds=10)
"""How long the head of a line waits for room that an idle warm agent holds."""

UNANSWERED_AFTER = timedelta(seconds=30)
"""An agent is bound within a second of being taken. One this old is looked into: is the taker there at all?"""

STARTED_A_PASS = 50
"""A large pool is filled in several passes: its spawns queue for the slots of their scaler anyway."""

BY = "warm pool"


class WarmActivities:
    def __init__(
        self,
        warm: WarmAgents,
        slots: Slots,
        adoption: Adoption,
        outcomes: Outcomes,
        config: CurrentConfig,
        temporal: Client,
        metrics: Metrics,
    ) -> None:
        self._warm = warm
        self._slots = slots
        self._adoption = adoption
        self._outcomes = outcomes
        self._config = config
        self._temporal = temporal
        self._metrics = metrics

    @property
    def all(self) -> list[Callable[..., Any]]:
        """For a worker's list."""
        return [
            self.bind, self.look, self.let_go, self.confirm, self.withdraw, self.offer, self.tend, self.sweep,
        ]  # fmt: skip

    # ── a job's side ────────────────────────────────────────────────────────────────────────────────────────────

    @activity.defn(name="bind_warm")
    async def bind(self, ask: BindInput) -> BindAnswer:
        """Have the warm agent's workflow take the job on. If it does not, let go of the agent.

        Raises ApplicationError, to be tried again, while nobody answers: only an answer tells whether it has the job.
        """
        bound = await self._send_bind(ask)
        if not bound:
            with store_errors(self._metrics):
                given_back = await self._warm.give_back(ask.agent_id)
                await wake(self._temporal, self._slots, given_back.wake)
                bound = given_back.bound is not None
                if not bound:
                    await self._end_if_abandoned(ask.warm.agent_id)
        await look_after_pool(self._temporal, ask.scaler)
        return BindAnswer(bound=bound)

    async def _send_bind(self, ask: BindInput) -> bool:
        """False: it said no, or is gone. An update id is used once: the server remembers a refusal by it."""
        handle = self._temporal.get_workflow_handle(
            ask.warm.workflow_id, first_execution_run_id=ask.warm.first_run_id or None
        )
        request = BindRequest(
            agent_id=ask.warm.agent_id, job_id=ask.job_id, run_id=ask.run_id, max_lifetime=ask.max_lifetime
        )
        info = activity.info()
        update_id = f"{ask.agent_id}.{info.activity_id}.{info.attempt}"
        try:
            await handle.execute_update("bind", request, id=update_id, result_type=AdoptedSpec, rpc_timeout=RPC_LIMIT)
        except WorkflowUpdateFailedError as e:
            kind = getattr(e.cause, "type", None)
            if kind in (ErrorType.NOT_BOUND, CLOSED_UNDER_THE_UPDATE):
                return False
            raise ApplicationError(f"the warm agent's workflow could not take the job on: {e.cause}") from None
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            raise ApplicationError("the warm agent's workflow did not answer in time") from None
        except RPCError as e:
            if e.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    @activity.defn(name="look_at_followed")
    async def look(self, ask: FollowedInput) -> FollowedAnswer:
        """How the agent that is followed has ended, as far as the store knows. For signals that got lost."""
        agent_id = ask.warm.agent_id
        with store_errors(self._metrics):
            row = await self._slots.get(agent_id)
            outcome = await self._outcomes.get(agent_id)
            if outcome is not None and outcome.decided_at is not None:
                return FollowedAnswer(ended=FollowedEnded(
                    agent_id=ask.agent_id,
                    served_by=agent_id,
                    end_reason=EndReason(outcome.end_reason or EndReason.HEARTBEAT_TIMEOUT.value),
                    result=JobResult(outcome.result) if outcome.result else JobResult.UNKNOWN,
                    teardown=TeardownState.CONFIRMED if outcome.closed_at else TeardownState.PENDING,
                ))  # fmt: skip
            if row is None:
                return FollowedAnswer(ended=FollowedEnded(
                    agent_id=ask.agent_id, served_by=agent_id, end_reason=EndReason.HEARTBEAT_TIMEOUT,
                    teardown=TeardownState.CONFIRMED, error="nothing is on record of the warm agent any more",
                ))  # fmt: skip
            await self._end_if_abandoned(agent_id)
            return FollowedAnswer(closing=row.closing)

    @activity.defn(name="let_go_of_warm")
    async def let_go(self, ask: LetGoInput) -> Done:
        """Ask the agent that serves the job to go. One whose workflow is gone is torn down without it."""
        if not await self._release(ask.warm.workflow_id, ask.release) and ask.release.now:
            with store_errors(self._metrics):
                await self._close(ask.warm.agent_id, ask.release.reason)
        return Done()

    # ── the warm agent's side ───────────────────────────────────────────────────────────────────────────────────

    @activity.defn(name="confirm_binding")
    async def confirm(self, ask: BindingInput) -> BindingAnswer:
        """Take the job on, if the row says that this agent was taken for it. From then on nobody can give it back."""
        with store_errors(self._metrics):
            row = await self._warm.bind(ask.agent_id, ask.job_id)
        return BindingAnswer(bound=binding(row) if row else None)

    @activity.defn(name="withdraw_warm")
    async def withdraw(self, ask: AgentInput) -> WithdrawAnswer:
        """Keep jobs from taking this agent. One that is taken already hears that it should go after its job."""
        with store_errors(self._metrics):
            return WithdrawAnswer(withdrawn=await self._warm.withdraw(ask.agent_id))

    @activity.defn(name="offer_warm")
    async def offer(self, ask: ScalerInput) -> Done:
        """An agent has become ready: whoever is first in its scaler's line gets it, if it can use it."""
        with store_errors(self._metrics):
            await wake(self._temporal, self._slots, await self._warm.offer([ask.scaler]))
        return Done()

    # ── a pool ──────────────────────────────────────────────────────────────────────────────────────────────────

    @activity.defn(name="tend_warm_pool")
    async def tend(self, ask: ScalerInput) -> PoolAnswer:
        """Look at one pool: fill it, release whom it has too many of, make room for who has waited for long enough."""
        with store_errors(self._metrics):
            return await self._tend(ask.scaler, await self._newest())

    @activity.defn(name="sweep_warm_pools")
    async def sweep(self, ask: SweepRequest) -> SweptStep:
        """All pools, also those that have left the configuration, and agents whose taker is gone."""
        done = {"started": 0, "released": 0, "let_go": 0}
        with store_errors(self._metrics):
            config = await self._newest()
            for taken in await self._warm.unanswered(UNANSWERED_AFTER):
                activity.heartbeat()
                if await workflow_is_gone(self._temporal, taken.taker.workflow_id, taken.taker.first_run_id):
                    returned = await self._slots.returned(taken.taker.agent_id)
                    await wake(self._temporal, self._slots, returned.wake)
                    done["let_go"] += returned.existed
                else:  # its line gave it the agent, and the signal that told it so is lost
                    await wake(self._temporal, self._slots, [taken.taker])
            for scaler in await self._worth_a_look(config):
                activity.heartbeat()
                answer = await self._tend(scaler, config)
                done["started"] += answer.started
                done["released"] += answer.released
        return SweptStep(done=done)

    async def _newest(self) -> Config:
        """The configuration in force at this moment: an apply may have started the look."""
        version, _ = await self._config.current()
        await self._config.newer_than(version)
        return (await self._config.current())[1]

    async def _worth_a_look(self, config: Config) -> list[str]:
        """Scalers with a pool, or with warm agents; and where there are any, every scaler: they may hold its room."""
        there = await self._warm.pools()
        if there:
            return list(dict.fromkeys([*there, *(scaler.name for scaler in config.scalers)]))
        return [scaler.name for scaler in config.scalers if scaler.warm_pool is not None]

    async def _tend(self, name: str, config: Config) -> PoolAnswer:
        await wake(self._temporal, self._slots, await self._warm.offer([name]))
        standing = await self._warm.standing(name)
        plan = warming.plan(_pool(name, config, standing))
        released = 0
        for marked in await self._warm.retire(plan.release):
            released += await self._send_away(marked.agent_id, marked.workflow_id, plan.release[marked.agent_id])
        for agent_id in plan.remind:
            await self._send_away(agent_id, standing.workflows.get(agent_id), EndReason.IDLE)
        again_in = None
        if standing.waited_for:
            relief = await self._warm.relieve(name, HEAD_PATIENCE)
            again_in = relief.again_in
            for marked in relief.release:
                released += await self._send_away(marked.agent_id, marked.workflow_id, EndReason.IDLE)
        scaler = config.scaler(name)
        label_set = scaler.warm_label_set if scaler else None
        started = min(plan.start, STARTED_A_PASS) if scaler and label_set else 0
        for _ in range(started):
            assert scaler is not None and label_set is not None  # noqa: S101, PT018 - else nothing is started
            await start_warm(self._temporal, scaler, label_set)
        return PoolAnswer(started=started, released=released, again_in=again_in)

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send_away(self, agent_id: str, workflow_id: str | None, reason: EndReason) -> bool:
        """Release an agent that is marked, so that no job has it. One without a workflow is torn down without it."""
        if workflow_id is not None and await self._release(
            workflow_id, ReleaseRequest(agent_id=agent_id, reason=reason, by=BY)
        ):
            return True
        await self._close(agent_id, reason)
        return True

    async def _release(self, workflow_id: str, release: ReleaseRequest) -> bool:
        """False: no workflow of that id is open."""
        try:
            await self._temporal.get_workflow_handle(workflow_id).signal("release", release, rpc_timeout=RPC_LIMIT)
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def _end_if_abandoned(self, agent_id: str) -> None:
        """A warm agent whose workflow is gone is torn down without it while it is idle, as nobody can bind it. One that
        is at work for its job is left at it, until the reaper finds it silent.
        """
        row = await self._slots.get(agent_id)
        if row is None or row.workflow_id is None:
            return
        if not await workflow_is_gone(self._temporal, row.workflow_id, row.workflow_first_run_id):
            return
        if row.closing:
            end = EndReason(row.end_reason or EndReason.HEARTBEAT_TIMEOUT.value)
            await tear_down(self._temporal, self._slots, row, end)
        elif row.idle:
            await self._close(agent_id, EndReason.RELEASED)

    async def _close(self, agent_id: str, end: EndReason) -> None:
        closed = await self._adoption.close(agent_id, end.value, only_unadopted=False)
        if closed.row is not None:
            await tear_down(self._temporal, self._slots, closed.row, end)


def _pool(name: str, config: Config, standing: Standing) -> warming.Pool:
    """The pool as the configuration wants it and as it stands."""
    scaler = config.scaler(name)
    label_set = scaler.warm_label_set if scaler else None
    there = warming.Pool(
        open=not standing.backing_off,
        draining=not standing.accepting,
        waited_for=standing.waited_for,
        agents=standing.agents,
        scopes=standing.scopes,
    )
    if scaler is None or scaler.warm_pool is None or label_set is None:
        return there
    defaults = config.defaults.resources
    return replace(
        there,
        target=scaler.warm_pool.size,
        idle_timeout=scaler.warm_pool.idle_timeout,
        key=warming.key(scaler, label_set, defaults),
        shape=shape(None, label_set.resources, defaults),
    )
