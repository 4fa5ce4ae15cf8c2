"""The reaper's look at everybody: reads the candidates, asks Temporal where it matters, and judges. Changes nothing.

Client code only: `hatchway reap --dry-run` uses it as well as the sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from hatchway import search_attributes
from hatchway.model import ProvisionState
from hatchway.reaping import NEVER_WAS, Candidate, Judgement, Windows, Workflow, depends_on_workflow, judge
from hatchway.store.reaping import Reaping
from hatchway.store.rows import SpawnRow

log = structlog.get_logger(__name__)

RPC_LIMIT = timedelta(seconds=5)

AT_ONCE = 16
"""Calls to Temporal that are under way side by side."""


BOUNDED = frozenset({"spawn", "teardown"})
"""Steps that the server ends in time. One of the store's is tried for as long as it fails."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One agent, what is known of it, and what that comes to."""

    candidate: Candidate
    row: SpawnRow
    judgement: Judgement
    now: datetime
    unanswered: bool = False
    """Temporal was asked about it and did not answer."""


class Reaper:
    """Judges with one set of windows. Raises StoreUnreachable and StoreContended; a silent Temporal spares."""

    def __init__(self, reaping: Reaping, temporal: Client, windows: Windows) -> None:
        self._reaping = reaping
        self._temporal = temporal
        self._windows = windows
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def judged(self, beat: Callable[[], None] = lambda: None) -> AsyncIterator[list[Judged]]:
        """Everybody of whom there is something to say, page by page. `beat` is called for each call to Temporal."""
        async for page in self._reaping.pages(self._windows):
            if page.unreadable:
                log.warning("reaper_cannot_read", agents=page.unreadable, see="hatchway doctor")
            yield await asyncio.gather(
                *(self._judge(found.candidate, found.row, page.now, beat) for found in page.found)
            )

    async def _judge(self, candidate: Candidate, row: SpawnRow, now: datetime, beat: Callable[[], None]) -> Judged:
        unanswered = False
        if depends_on_workflow(candidate, self._windows, now):
            async with self._at_once:
                beat()
                try:
                    candidate = await self._asked(candidate)
                except RPCError as e:
                    unanswered = True
                    log.warning("reaper_unanswered", agent_id=candidate.agent_id, reason=e.message)
        return Judged(candidate, row, judge(candidate, self._windows, now), now, unanswered)

    async def _asked(self, candidate: Candidate) -> Candidate:
        """The provision first: it starts its teardown's workflow before it closes, so both are never seen closed."""
        workflow = await self.look(candidate)
        if not candidate.closing:
            return replace(candidate, workflow=workflow)
        teardown = await _describe(self._temporal, f"teardown/{candidate.agent_id}")
        running = teardown is not None and teardown.status is WorkflowExecutionStatus.RUNNING
        return replace(candidate, workflow=workflow, teardown_open=running)

    async def look(self, candidate: Candidate) -> Workflow:
        """What Temporal says of the agent's workflow. Raises RPCError when it does not answer."""
        if candidate.workflow_id is None:
            return NEVER_WAS
        found = await _describe(self._temporal, candidate.workflow_id)
        if found is None:
            return NEVER_WAS
        first_run_id = found.raw_description.workflow_execution_info.first_run_id
        if first_run_id and first_run_id != candidate.first_run_id:  # older servers leave it out
            return Workflow(open=False, closed_at=found.start_time)  # another start: ours had closed before it
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return Workflow(open=False, closed_at=found.close_time)
        state = found.typed_search_attributes.get(search_attributes.STATE)
        return Workflow(
            open=True,
            acting=any(step.activity_type.name in BOUNDED for step in found.raw_description.pending_activities),
            tearing_down=state == ProvisionState.TEARING_DOWN.value,
            run_id=found.run_id,
        )


async def _describe(temporal: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        return await temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
