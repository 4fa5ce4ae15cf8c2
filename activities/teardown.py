"""Teardown: the step that destroys compute, and, where the end can change no more, all that goes with it."""

from __future__ import annotations

from collections.abc import Mapping

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.backends import Backends
from activities.errors import store_errors
from activities.heartbeats import heartbeats
from activities.models import Decision, ReleaseInput, TeardownInput, TornDown
from activities.releasing import Releasing
from hatchway.backends.base import Accepted, Backend
from hatchway.errors import DestroyError
from hatchway.metrics import Metrics
from hatchway.model import EndReason, TeardownFacts, TeardownState
from hatchway.store.adoption import Adoption


class TeardownActivities:
    """Of one host: `backends` are those that this worker reaches there, by their kind."""

    def __init__(
        self,
        host_id: str,
        backends: Mapping[str, Backend],
        adoption: Adoption,
        releasing: Releasing,
        metrics: Metrics,
    ) -> None:
        self._backends = Backends(host_id, backends)
        self._adoption = adoption
        self._releasing = releasing
        self._metrics = metrics

    @activity.defn
    async def teardown(self, ask: TeardownInput) -> TornDown:
        """Destroy the agent's compute, found by its agent id; absent is gone.

        With `final_end`, close before and release after, which saves a provision two steps. A database that does not
        answer fails that at once, whatever was done by then: the workflow takes the steps one by one, and those wait.
        """
        async with heartbeats():
            facts = await self._close(ask, ask.final_end) if ask.final_end else ask.facts
            backend = self._backends.of(facts.backend_type)
            try:
                gone = await backend.destroy(ask.agent_id, facts, ask.reason)
            except DestroyError as e:
                raise ApplicationError(str(e), type="DestroyError") from None
            decision = await self._release(ask, ask.final_end) if ask.final_end else None
        state = TeardownState.ACCEPTED if isinstance(gone, Accepted) else TeardownState.CONFIRMED
        return TornDown(teardown=state, decision=decision)

    async def _close(self, ask: TeardownInput, end: EndReason) -> TeardownFacts:
        """From here on nobody can adopt. What stands on the row counts; where that has gone, what was asked with."""
        with store_errors(self._metrics, fatal=True):
            closed = await self._adoption.close(ask.agent_id, end.value, only_unadopted=False)
        return (closed.row.teardown_facts if closed.row else None) or ask.facts

    async def _release(self, ask: TeardownInput, end: EndReason) -> Decision:
        with store_errors(self._metrics, fatal=True):
            return await self._releasing.release(ReleaseInput(agent_id=ask.agent_id, end_reason=end))
