"""Tells the workflow of an agent that its compute has ended. Client code only."""

from __future__ import annotations

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from hatchway.liveness import open_workflow_of
from hatchway.model import ComputeExit
from hatchway.store.outcomes import Outcomes
from hatchway.store.slots import Slots

log = structlog.get_logger("hatchway.worker")


class Exits:
    def __init__(self, slots: Slots, outcomes: Outcomes, temporal: Client) -> None:
        self._slots = slots
        self._outcomes = outcomes
        self._temporal = temporal

    async def tell(self, exited: ComputeExit) -> None:
        """What the agent printed travels only while nobody has adopted it. Raises RPCError, and what the store does."""
        workflow_id, unadopted = await self._whom(exited.agent_id)
        if workflow_id is None:
            return
        if not unadopted:
            exited = exited.model_copy(update={"log_tail": ""})
        try:
            await self._temporal.get_workflow_handle(workflow_id).signal("compute_exited", exited)
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            log.warning("an agent ended whose workflow is gone", agent_id=exited.agent_id)

    async def _whom(self, agent_id: str) -> tuple[str | None, bool]:
        """The workflow, and whether it is certain that nobody has adopted the agent.

        A row can be lost, as by a restored backup, and each exit is told once only: then the provision is looked for.
        """
        row = await self._slots.get(agent_id)
        if row is not None:
            return row.workflow_id, row.adopted_by is None
        outcome = await self._outcomes.get(agent_id)
        if outcome is not None and outcome.closed_at is not None:
            return None, False
        found = await open_workflow_of(self._temporal, agent_id)
        return (found.workflow_id if found is not None and found.is_provision else None), False
