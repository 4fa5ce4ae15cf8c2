"""Teardown: the step that destroys compute, and, where the end can change no more, all that goes with it.

closed ──► destroyed ──► released
   │ released before: an earlier attempt of this step got that far, and its reply was lost
   └──────────────────────────► released once more, which changes nothing and tells whoever was not told
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.backends import Backends
from activities.errors import store_errors, within
from activities.heartbeats import heartbeats
from activities.models import Decision, ReleaseInput, TeardownInput, TornDown
from activities.releasing import Releasing
from hatchway.backends.base import Accepted, Backend
from hatchway.backends.errors import without_any_claims
from hatchway.errors import DestroyError
from hatchway.metrics import Metrics
from hatchway.model import EndReason, TeardownFacts, TeardownState
from hatchway.store.adoption import Adoption, CloseAnswer

STORE_LIMIT = timedelta(seconds=5)
"""For each call of the store in this step. Where it is slower, the workflow goes on step by step, and waits there: the
round is for the backend, and a slow database must not count as a backend that does not answer."""

LAST_ATTEMPT = timedelta(seconds=10)
"""What a pause leaves of the round: one that outlasted it would end the round at once, and the next begins at once."""


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
        answer soon fails that at once, whatever was done by then: the workflow takes the steps one by one, and those
        wait.
        """
        async with heartbeats():
            if ask.final_end is None:
                return await self._destroy(ask, ask.facts)
            closed = await self._close(ask.agent_id, ask.final_end)
            if closed.released:
                torn = TornDown(teardown=TeardownState(closed.teardown or TeardownState.PENDING))
            else:
                # What stands on the row counts; where that has been lost, what was asked with.
                torn = await self._destroy(ask, (closed.row.teardown_facts if closed.row else None) or ask.facts)
            release = ReleaseInput(agent_id=ask.agent_id, end_reason=ask.final_end, teardown=torn.teardown)
            return torn.model_copy(update={"decision": await self._release(release)})

    async def _destroy(self, ask: TeardownInput, facts: TeardownFacts) -> TornDown:
        try:
            gone = await self._backends.of(facts.backend_type).destroy(ask.agent_id, facts, ask.reason)
        except DestroyError as e:
            # A provisioner may quote the machine's user data. Nobody here knows its claim code any more, but its looks.
            raise ApplicationError(
                without_any_claims(str(e)), type="DestroyError", next_retry_delay=_pause(e.retry_after)
            ) from None
        if not isinstance(gone, Accepted):
            return TornDown(teardown=TeardownState.CONFIRMED)
        if gone.doubt:
            activity.logger.warning("teardown_in_doubt: %s", gone.doubt)
        return TornDown(teardown=TeardownState.ACCEPTED, doubt=gone.doubt or None)

    async def _close(self, agent_id: str, end: EndReason) -> CloseAnswer:
        """From here on nobody can adopt."""
        with store_errors(self._metrics, fatal=True):
            return await within(STORE_LIMIT, self._adoption.close(agent_id, end.value, only_unadopted=False))

    async def _release(self, ask: ReleaseInput) -> Decision:
        with store_errors(self._metrics, fatal=True):
            return await self._releasing.release(ask, STORE_LIMIT)


def _pause(asked: timedelta | None) -> timedelta | None:
    """How long to leave a target alone that asked for it, within the round. None: as the retry policy has it."""
    info = activity.info()
    if not asked or info.schedule_to_close_timeout is None:
        return asked or None
    left = info.scheduled_time + info.schedule_to_close_timeout - datetime.now(UTC) - LAST_ATTEMPT
    return min(asked, left) if left > timedelta(seconds=1) else None
