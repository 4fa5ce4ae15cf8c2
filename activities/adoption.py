"""Adopt and close: the two calls that exclude each other on the spawn row."""

from __future__ import annotations

from temporalio import activity

from activities.errors import store_errors
from activities.models import AdoptAnswer, AdoptInput, AdoptKind, CloseAnswer, CloseInput, CloseKind
from hatchway.metrics import Metrics
from hatchway.model import EndReason
from hatchway.store.adoption import Adopted, AdoptedByOther, Adoption, NoSuchProvision, TearingDown


class AdoptionActivities:
    def __init__(self, adoption: Adoption, metrics: Metrics) -> None:
        self._adoption = adoption
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
        if ask.end_reason is EndReason.ADOPTION_TIMEOUT and CloseKind(answer.kind) is CloseKind.CLOSING:
            self._metrics.provision_timed_out()
        return CloseAnswer(
            kind=CloseKind(answer.kind),
            facts=answer.row.teardown_facts if answer.row else None,
            adopted_by=answer.row.adopted_by if answer.row else None,
            end_reason=EndReason(answer.end_reason) if answer.end_reason else None,
        )
