"""Adopt and close: the two calls that exclude each other on the spawn row."""

from __future__ import annotations

from temporalio import activity

from activities.errors import store_errors
from activities.failures import UNREGISTERED
from activities.models import AdoptAnswer, AdoptInput, AdoptKind, CloseAnswer, CloseInput, CloseKind
from hatchway.config.current import CurrentConfig
from hatchway.metrics import Metrics
from hatchway.model import EndReason, TeardownState
from hatchway.store.adoption import Adopted, AdoptedByOther, Adoption, NoSuchProvision, TearingDown
from hatchway.store.backoff import Backoff
from hatchway.store.rows import SpawnRow


class AdoptionActivities:
    def __init__(self, adoption: Adoption, backoff: Backoff, config: CurrentConfig, metrics: Metrics) -> None:
        self._adoption = adoption
        self._backoff = backoff
        self._config = config
        self._metrics = metrics

    @activity.defn
    async def adopt(self, ask: AdoptInput) -> AdoptAnswer:
        """Let the agent in, unless its provision is closing or another process is this agent already."""
        with store_errors(self._metrics):
            answer = await self._adoption.adopt(ask.agent_id, ask.instance_id, ask.registration_id)
        match answer:
            case Adopted():
                return AdoptAnswer(kind=AdoptKind.ADOPTED)
            case NoSuchProvision():
                return AdoptAnswer(kind=AdoptKind.NO_SUCH_PROVISION)
            case TearingDown(end_reason=reason):
                return AdoptAnswer(kind=AdoptKind.TEARING_DOWN, detail=reason or "")
            case AdoptedByOther(instance_id=other):
                return AdoptAnswer(kind=AdoptKind.ADOPTED_BY_OTHER, detail=other)

    @activity.defn
    async def close(self, ask: CloseInput) -> CloseAnswer:
        """The first step of every teardown: from here on nobody can adopt, and the claims are gone."""
        with store_errors(self._metrics):
            answer = await self._adoption.close(ask.agent_id, ask.end_reason.value, only_unadopted=ask.only_unadopted)
            if answer.row and answer.row.closing:
                await self._count_unregistered(answer.row)
        if ask.end_reason is EndReason.ADOPTION_TIMEOUT and CloseKind(answer.kind) is CloseKind.CLOSING:
            self._metrics.provision_timed_out()
        return CloseAnswer(
            kind=CloseKind(answer.kind),
            facts=answer.row.teardown_facts if answer.row else None,
            adopted_by=answer.row.adopted_by if answer.row else None,
            end_reason=EndReason(answer.end_reason) if answer.end_reason else None,
            released=answer.released,
            teardown=TeardownState(answer.teardown) if answer.teardown else None,
        )

    async def _count_unregistered(self, row: SpawnRow) -> None:
        """An agent that was spawned and that nobody ever heard of: the next one on this scaler may fare no better.

        Not where jobs may bring the image: then it may be the job's doing, and the row does not tell. A repeat counts
        once, and so do agents that were under way together.
        """
        if row.adopted_by is not None or row.compute is None or row.config_version is None or row.end_reason is None:
            return
        config = await self._config.of_row(row)
        scaler = config.scaler(row.scaler)
        found = UNREGISTERED.get(EndReason(row.end_reason))
        if found is None or scaler is None or scaler.allow_job_image:
            return
        code, message = found
        await self._backoff.failed(
            row.scaler,
            row.agent_id,
            began_at=row.spawned_at,
            code=code,
            message=message,
            base=config.backoff.base,
            max=config.backoff.max,
        )
