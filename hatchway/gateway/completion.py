"""A completion is committed first and signalled second: the fact is safe before anybody acts on it.

A signal that is lost after the commit is made up for by the next call: the agent repeats `complete` until it hears an
answer, and every repeat finds the committed result and signals again.
"""

from __future__ import annotations

import structlog

from hatchway.gateway.errors import superseded, unauthorized
from hatchway.gateway.patience import Patience
from hatchway.gateway.provisions import ProvisionGone, Provisions
from hatchway.model import (
    EndReason,
    JobResult,
    ReleaseRequest,
    ScaleDownReason,
    TeardownRequest,
)
from hatchway.store.outcomes import Completed, CompletionRefused, Outcomes

log = structlog.get_logger(__name__)


class Completions:
    def __init__(self, outcomes: Outcomes, provisions: Provisions, patience: Patience, instance_id: str) -> None:
        self._outcomes = outcomes
        self._instance_id = instance_id
        self._provisions = provisions
        self._patience = patience

    async def complete(self, agent_id: str, registration_id: str, result: str, exit_code: int | None) -> JobResult:
        """Commit, then tell the provision. Returns the result on record. Raises 401 or 410 for an agent to stop.

        Raises TemporalUnreachable with the result committed: the caller repeats, which costs nothing.
        """
        answer = await self._patience(self._outcomes.complete(agent_id, registration_id, result, exit_code))
        if answer is CompletionRefused.GONE:
            raise unauthorized()
        if not isinstance(answer, Completed):
            raise superseded()
        log.info("agent_completed", agent_id=agent_id, result=answer.result, exit_code=answer.exit_code)
        recorded = JobResult(answer.result)
        # Closing already: whoever closed it asks for recorded completions before it decides the outcome.
        if not answer.closing:
            await self._tell(answer)
        return recorded

    async def _tell(self, completed: Completed) -> None:
        agent_id = completed.agent_id
        signal = ReleaseRequest(agent_id=agent_id, reason=EndReason.COMPLETED, by=self._instance_id)
        try:
            if completed.workflow_id is None or completed.first_run_id is None:
                raise ProvisionGone("its row names no workflow")
            await self._provisions.completed(completed.workflow_id, completed.first_run_id, signal)
        except ProvisionGone as e:
            log.warning("agent_completed_without_provision", agent_id=agent_id, reason=str(e))
            facts = completed.row.teardown_facts
            if (
                facts is None
            ):  # an agent that ran without a stamp: nobody knows where, so the row stands for an operator
                log.error("agent_completed_on_unknown_host", agent_id=agent_id)
                return
            await self._provisions.tear_down(
                TeardownRequest(
                    agent_id=agent_id,
                    facts=facts,
                    reason=ScaleDownReason.JOB_COMPLETE,
                    end_reason=EndReason.COMPLETED,
                )
            )
