"""Compute that a spawn has asked for and that nobody wants any more: closed meanwhile, or its attempt was cut short.

    cut short ──► does its row want an agent? ── yes, or the database does not say ──► it stands
                        │ no: closing, or gone
                        ▼
              its workflow called it off ── yes, and the row stands ──► it stands: the teardown waits for this
                        │ no: nobody waits for this attempt; a teardown may have looked too early to see anything
                        ▼
                    destroyed

That an attempt is cut short says little of its agent. A worker that leaves hands the attempt back; one that was cut off
hears that it was given to another. The same compute may have been taken over by then, and its agent be at work.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from temporalio import activity

from activities.backends import Backends
from hatchway.backends.errors import without_any_claims
from hatchway.errors import DestroyError, StoreContended, StoreUnreachable
from hatchway.model import ComputeRef, EndReason, ScaleDownReason, TeardownFacts
from hatchway.store.rows import SpawnRow
from hatchway.store.slots import Slots
from hatchway.transitions import wire_reason

log = structlog.get_logger(__name__)

ASK_S = 5.0
"""How long the database may take to say whether the agent is wanted. Somebody may wait for the cut to go through."""
DESTROY_S = 60.0
"""How long is tried to destroy it, beside the grace that its agent has to stop: a cloud's instance takes half a minute
to go. No teardown may come after this."""
PAUSE_S = 1.0


class Unwanted:
    def __init__(self, backends: Backends, slots: Slots) -> None:
        self._backends = backends
        self._slots = slots

    async def after_a_cut(self, row: SpawnRow, stop_grace: timedelta) -> None:
        """Destroy what a spawn that was cut short may have asked for, if nobody wants it and nobody else will.

        `row`: as it was when the attempt began. `stop_grace`: what its agent was made with. Raises nothing: it is a
        cancellation that goes on from here.
        """
        try:
            async with asyncio.timeout(ASK_S):
                now = await self._slots.get(row.agent_id)
        except (StoreUnreachable, StoreContended, TimeoutError) as e:
            log.warning("spawn_cut_short", agent_id=row.agent_id, what="its compute stands: nobody could be asked",
                        error=str(e) or "the database did not answer in time")  # fmt: skip
            return
        except Exception:  # as below: a bug must not take the place of the cancellation
            log.exception("spawn_cut_short", agent_id=row.agent_id, what="its compute stands: nobody could be asked")
            return
        if now is not None and not now.closing:
            log.info("spawn_cut_short", agent_id=row.agent_id, what="its compute stands: the agent is wanted")
        elif now is not None and _called_off():
            log.info("spawn_cut_short", agent_id=row.agent_id, what="its compute stands: its teardown is next")
        else:
            await self._destroy_or_say(now or row, stop_grace)

    async def _destroy_or_say(self, row: SpawnRow, stop_grace: timedelta) -> None:
        try:
            await self.destroy(row, stop_grace)
        except Exception:  # a bug must not take the place of the cancellation, which tells Temporal what happened
            log.exception("unwanted_compute_left", agent_id=row.agent_id, host_id=row.host_id)

    async def destroy(self, row: SpawnRow, stop_grace: timedelta, compute: ComputeRef | None = None) -> bool:
        """Until it is gone, or its target has accepted that, or the time is up. False: it may still stand."""
        facts = TeardownFacts(backend_type=row.backend_type or "", host_id=row.host_id or "")
        facts = (row.teardown_facts or facts).model_copy(update={"compute": compute} if compute else {})
        trouble = "no answer"
        try:
            async with asyncio.timeout(DESTROY_S + stop_grace.total_seconds()):
                while True:
                    try:
                        await self._backends.of(row.backend_type).destroy(row.agent_id, facts, _reason(row))
                    except DestroyError as e:
                        trouble = without_any_claims(str(e))
                        await asyncio.sleep(PAUSE_S)
                    else:
                        log.info("unwanted_compute_destroyed", agent_id=row.agent_id)
                        return True
        except TimeoutError:
            log.error("unwanted_compute_left", agent_id=row.agent_id, host_id=row.host_id, error=trouble)
            return False


def _reason(row: SpawnRow) -> ScaleDownReason:
    """What its teardown says too. Unknown where the row had not been closed when it was read."""
    return wire_reason(EndReason(row.end_reason), row.adopted) if row.end_reason else ScaleDownReason.SHUTDOWN


def _called_off() -> bool:
    """Whether the workflow itself asked for the cut: then it waits for this attempt to let go."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested
