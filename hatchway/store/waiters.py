"""The line for slots. Whatever frees room hands it over in its own transaction; the sweep does so for room that opens
by time (a backoff that runs out)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hatchway.store.pool import Database
from hatchway.store.reservations import Bound
from hatchway.store.rows import Wake, wakes


@dataclass(frozen=True, slots=True)
class Waiter:
    """One agent in the line, over all the scalers that would do."""

    agent_id: str
    workflow_id: str
    first_run_id: str | None
    job_id: str | None
    priority: int
    scalers: list[str]
    """Best first."""
    parked: bool
    """No candidate could hold it under the config of now."""
    age: timedelta
    deadline_at: datetime | None


@dataclass(frozen=True, slots=True)
class Drained:
    """`changed`: it was not so before. `wake`: who got a slot by it, and who waits for this scaler: signal each."""

    changed: bool
    wake: list[Wake]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiter stands now. `bounds`: what each of its candidates meets, best first."""

    position: int
    bounds: list[Bound]


class Line:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def pump(self) -> list[Wake]:
        """Hand over whatever room there is. Answers at most 100 grants that nobody has taken up: signal each, and ask
        again until there are none.

        A signal that is answered NOT_FOUND: `Slots.returned`.
        """
        return wakes(await self._db.call("hatchway_pump_all", {}, admission=True))

    async def grants(self, older_than: timedelta, limit: int = 200) -> list[Wake]:
        """Slots that were handed over so long ago, oldest first, and not taken up: is their workflow there at all?"""
        rows = await self._db.fetch_all(
            """
            select workflow_id, workflow_first_run_id, agent_id
              from scaler_spawning_agents
             where state = 'granted' and spawned_at < now() - %(older_than)s::interval
             order by spawned_at
             limit %(limit)s
            """,
            {"older_than": older_than, "limit": limit},
        )
        return [Wake(*row) for row in rows]

    async def outdated(self, limit: int = 100) -> list[Wake]:
        """Waiters that were planned under an older config, best first, each at most once a minute: signal each.

        Their next reserve plans them anew, at their place.
        """
        return wakes(await self._db.call("hatchway_replan", {"limit": limit}))

    async def overdue(self, grace: timedelta, limit: int = 100) -> list[Wake]:
        """Waiters whose own deadline passed so long ago: a workflow that lives would have left the line by then."""
        rows = await self._db.fetch_all(
            """
            select workflow_id, spawn->>'workflow_first_run_id', agent_id
              from scaler_waiters
             where rank = 1 and deadline_at < now() - %(grace)s::interval
             order by priority, seq
             limit %(limit)s
            """,
            {"grace": grace, "limit": limit},
        )
        return [Wake(*row) for row in rows]

    async def heads(self, older_than: timedelta) -> list[Wake]:
        """Who stands first for each scaler, and has waited so long: everybody behind waits for them, too."""
        rows = await self._db.fetch_all(
            """
            select distinct head.workflow_id, head.workflow_first_run_id, head.agent_id
              from scaler_capacity s
             cross join lateral (
               select workflow_id, spawn->>'workflow_first_run_id' as workflow_first_run_id, agent_id, enqueued_at
                 from scaler_waiters w
                where w.scaler_name = s.scaler_name and not parked
                order by priority, seq, rank
                limit 1) head
             where head.enqueued_at < now() - %(older_than)s::interval
            """,
            {"older_than": older_than},
        )
        return [Wake(*row) for row in rows]

    async def accept(self, scaler: str, accepting: bool, by: str = "unknown") -> Drained | None:
        """Drain a scaler (False), or end its drain. None: no such scaler in the config."""
        answer = await self._db.call(
            "hatchway_accept", {"scaler": scaler, "accepting": accepting, "by": by}, admission=True
        )
        return Drained(answer["changed"], wakes(answer["wake"])) if answer["known"] else None

    async def scalers(self) -> list[str]:
        """The scalers of the config in force, by name."""
        rows = await self._db.fetch_all(
            "select scaler_name from scaler_capacity where scaler_name is not null and not retired order by scaler_name"
        )
        return [name for (name,) in rows]

    async def list(self, limit: int | None = None) -> list[Waiter]:
        """Everybody who waits, or the first of them; first come first within a priority, 1 first."""
        rows = await self._db.fetch_all(
            """
            select first.agent_id, first.workflow_id,
                   first.spawn->>'workflow_first_run_id', first.job_id, first.priority, every.scalers, every.parked,
                   now() - first.enqueued_at, first.deadline_at
              from (select * from scaler_waiters where rank = 1 order by priority, seq limit %(limit)s) first
             cross join lateral (
               select array_agg(scaler_name order by rank) scalers, bool_and(parked) parked
                 from scaler_waiters
                where agent_id = first.agent_id) every
             order by first.priority, first.seq
            """,
            {"limit": limit},
        )
        return [Waiter(*row) for row in rows]

    async def place(self, agent_id: str) -> Place | None:
        """Where it stands and what binds, in the words of its own workflow's page. None: it does not wait."""
        found = await self._db.fetch_value(
            """
            select hatchway_why(%(agent_id)s)
             where exists (select from scaler_waiters where agent_id = %(agent_id)s)
            """,
            {"agent_id": agent_id},
        )
        return None if found is None else Place(found["position"], [Bound.from_json(b) for b in found["bound"]])
