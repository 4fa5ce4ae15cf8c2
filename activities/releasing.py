"""The end of a slot: the outcome is decided, the slot is free, and whoever was handed the room is told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from temporalio.client import Client

from activities.errors import within
from activities.models import Decision, ReleaseInput
from hatchway.metrics import Metrics
from hatchway.model import EndReason, JobResult
from hatchway.store.slots import Slots, Wake
from hatchway.waking import wake


class Releasing:
    """For whoever has seen the compute gone. Every call may be repeated."""

    def __init__(self, slots: Slots, temporal: Client, metrics: Metrics) -> None:
        self._slots = slots
        self._temporal = temporal
        self._metrics = metrics

    async def release(self, ask: ReleaseInput, limit: timedelta | None = None) -> Decision:
        """Decide the outcome unless that was done before, free the slot, leave the line, tell who was handed the room.

        The compute is gone: nobody can record a completion any more. Raises StoreUnreachable, also where the database
        takes longer than `limit`, and StoreContended; RPCError where Temporal does not answer, with the slot free.
        """
        teardown = ask.teardown.value if ask.teardown else None
        released = await within(
            limit, self._slots.release(ask.agent_id, ask.end_reason.value, unheard(ask), teardown=teardown)
        )
        await self.wake(released.wake)
        return decision(ask, released.end_reason, released.result, released.adopted_by)

    async def wake(self, grants: Iterable[Wake]) -> None:
        self._metrics.redispatched("hand-over", await wake(self._temporal, self._slots, grants))


def unheard(ask: ReleaseInput) -> str | None:
    """What is written down of a job when the store has no completion of it."""
    return JobResult.UNKNOWN.value if ask.end_reason is EndReason.COMPLETED else None


def decision(ask: ReleaseInput, end_reason: str | None, result: str | None, adopted_by: str | None) -> Decision:
    return Decision(
        end_reason=EndReason(end_reason or ask.end_reason),
        result=JobResult(result) if result else JobResult.UNKNOWN,
        adopted_by=adopted_by,
    )
