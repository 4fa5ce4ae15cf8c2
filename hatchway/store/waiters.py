"""The line for slots. Whatever frees room hands it over in its own transaction; the sweep does so for room that opens
by time (a backoff that runs out)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hatchway.store.pool import Database
from hatchway.store.rows import Wake, wakes


@dataclass(frozen=True, slots=True)
class Waiter:
    """One agent in the line, over all the scalers that would do."""

    agent_id: str
    workflow_id: str
    job_id: str | None
    priority: int
    scalers: list[str]
    """Best first."""
    parked: bool
    """No candidate could hold it under the config of now."""
    age: timedelta
    deadline_at: datetime | None


class Line:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def pump(self) -> list[Wake]:
        """Hand over whatever room there is. Answers the grants that nobody has taken up: signal each.

        A signal that is answered NOT_FOUND: `Slots.returned`.
        """
        return wakes(await self._db.call("hatchway_pump_all", {}, admission=True))

    async def accept(self, scaler: str, accepting: bool) -> list[Wake] | None:
        """Drain a scaler (False), or end its drain. None: no such scaler in the config."""
        answer = await self._db.call("hatchway_accept", {"scaler": scaler, "accepting": accepting}, admission=True)
        return wakes(answer["wake"]) if answer["known"] else None

    async def list(self) -> list[Waiter]:
        """Everybody who waits, first come first within a priority, 1 first."""
        rows = await self._db.fetch_all(
            """
            select agent_id, min(workflow_id), min(job_id), min(priority), array_agg(scaler_name order by rank),
                   bool_and(parked), now() - min(enqueued_at), min(deadline_at)
              from scaler_waiters
             group by agent_id
             order by min(priority), min(seq)
            """
        )
        return [Waiter(*row) for row in rows]
