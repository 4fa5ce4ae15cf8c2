"""Whether what admission counts with is what is there. For `hatchway doctor`; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString

from hatchway.store.adoption import INSTANCE_TIMEOUT
from hatchway.store.pool import Database
from hatchway.store.rows import FAR_AHEAD, LONG_AGO

_JUDGED_BY: dict[LiteralString, tuple[LiteralString, tuple[LiteralString, ...]]] = {
    "scaler_spawning_agents": ("agent_id", ("spawned_at", "adopted_at", "deadline_at", "closing_at")),
    "scaler_agent_presence": ("agent_id", ("last_seen_at", "heard_since")),
    "scaler_instances": ("instance_id", ("last_seen_at", "alive_since")),
}
"""What a verdict hangs on, by table: the key and the times."""


@dataclass(frozen=True, slots=True)
class Miscount:
    """A scope whose counters are not what its reservations add up to: (agents, millicpu, bytes)."""

    scope: str
    counted: tuple[int, int, int]
    reserved: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LateGrant:
    """A slot that was handed over, and that its workflow has not taken up."""

    agent_id: str
    workflow_id: str | None
    scaler: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Stuck:
    """An agent that has stood for too long where it stands."""

    agent_id: str
    scaler: str
    state: str
    workflow_id: str | None
    first_run_id: str | None
    host_id: str | None
    since: timedelta
    """Since its deadline has passed, or since it began to close."""


@dataclass(frozen=True, slots=True)
class Untimely:
    """A row with a time that nothing can be reckoned by: infinite, before year 1 or after 9999."""

    table: str
    key: str
    """The agent or the instance."""
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A row whose workflow was not among those that are open."""

    agent_id: str
    state: str
    workflow_id: str
    first_run_id: str | None


class Audit:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def miscounts(self) -> list[Miscount]:
        """Every scope that is counted wrong, in one snapshot. Also a scope that reservations name and nobody counts."""
        rows = await self._db.fetch_all(
            """
            with facts as (
              select scope, count(*) agents, coalesce(sum(mcpu), 0) mcpu, coalesce(sum(mem_bytes), 0) mem_bytes
                from (select 'global' scope, mcpu, mem_bytes from scaler_reservations
                      union all
                      select 'scaler:' || scaler_name, mcpu, mem_bytes from scaler_reservations
                      union all
                      select 'pool:' || machine_pool, mcpu, mem_bytes from scaler_reservations
                       where machine_pool is not null) reserved
               group by scope)
            select scope, coalesce(c.agents, 0), coalesce(c.mcpu, 0), coalesce(c.mem_bytes, 0),
                   coalesce(f.agents, 0), coalesce(f.mcpu, 0)::bigint, coalesce(f.mem_bytes, 0)::bigint
              from scaler_capacity c
              full join facts f using (scope)
             where (coalesce(c.agents, 0), coalesce(c.mcpu, 0), coalesce(c.mem_bytes, 0))
                   is distinct from (coalesce(f.agents, 0), coalesce(f.mcpu, 0), coalesce(f.mem_bytes, 0))
             order by scope
            """
        )
        return [Miscount(row[0], row[1:4], row[4:7]) for row in rows]

    async def slots_without_reservation(self) -> list[str]:
        """Agents that hold a slot which counts nowhere: no cap sees them."""
        rows = await self._db.fetch_all(
            """
            select s.agent_id
              from scaler_spawning_agents s
             where not exists (select from scaler_reservations r where r.agent_id = s.agent_id)
             order by s.spawned_at
             limit 100
            """
        )
        return [agent_id for (agent_id,) in rows]

    async def late_grants(self, older_than: timedelta) -> list[LateGrant]:
        """The oldest hundred of them."""
        rows = await self._db.fetch_all(
            """
            select agent_id, workflow_id, scaler_name, now() - spawned_at
              from scaler_spawning_agents
             where state = 'granted' and spawned_at < now() - %(older_than)s::interval
             order by spawned_at
             limit 100
            """,
            {"older_than": older_than},
        )
        return [LateGrant(*row) for row in rows]

    async def hosts(self) -> list[str]:
        """Hosts that have compute of ours, or may have: somebody must be there to take it down."""
        rows = await self._db.fetch_all(
            "select distinct host_id from scaler_spawning_agents where host_id is not null order by host_id"
        )
        return [host_id for (host_id,) in rows]

    async def agents_by_host(self) -> dict[str, int]:
        """How many agents of each host hold a slot: the hosts of `hosts`."""
        rows = await self._db.fetch_all(
            """
            select host_id, count(*)
              from scaler_spawning_agents
             where host_id is not null
             group by host_id
             order by host_id
            """
        )
        return dict(rows)

    async def live_hosts(self, timeout: timedelta = INSTANCE_TIMEOUT) -> set[str]:
        """Hosts that a worker reaches which has been heard of in time."""
        rows = await self._db.fetch_all(
            """
            select distinct unnest(host_ids)
              from scaler_instances
             where kind = 'worker' and last_seen_at > now() - %(timeout)s::interval
            """,
            {"timeout": timeout},
        )
        return {host_id for (host_id,) in rows}

    async def live_workers(self, timeout: timedelta = INSTANCE_TIMEOUT) -> set[str]:
        """Instance ids, which are what they call themselves to Temporal."""
        rows = await self._db.fetch_all(
            """
            select instance_id
              from scaler_instances
             where kind = 'worker' and last_seen_at > now() - %(timeout)s::interval
            """,
            {"timeout": timeout},
        )
        return {instance_id for (instance_id,) in rows}

    async def stuck(self, overdue: timedelta, closing: timedelta) -> list[Stuck]:
        """Whose deadline has passed for `overdue`, or who has been closing for `closing`. The oldest hundred.

        Not those of whom nobody knows owner, gateway or workflow: the reaper spares them, and tells of them.
        """
        rows = await self._db.fetch_all(
            """
            select agent_id, scaler_name, state, workflow_id, workflow_first_run_id, host_id,
                   now() - coalesce(closing_at, deadline_at)
              from scaler_spawning_agents
             where ((closing_at is null and deadline_at < now() - %(overdue)s::interval)
                    or closing_at < now() - %(closing)s::interval)
               and isfinite(coalesce(closing_at, deadline_at))
               and (closing_at is not null or coalesce(owner_instance_id, adopted_by, workflow_id) is not null)
             order by coalesce(closing_at, deadline_at)
             limit 100
            """,
            {"overdue": overdue, "closing": closing},
        )
        return [Stuck(*row) for row in rows]

    async def untimely(self) -> list[Untimely]:
        """Rows that the reaper cannot judge, or judge by. A hundred of each table at most."""
        found: list[Untimely] = []
        for table, (key, columns) in _JUDGED_BY.items():
            outside = [f"{column} not between %(first)s and %(last)s" for column in columns]
            named = ", ".join(f"case when {o} then '{c}' end" for c, o in zip(columns, outside, strict=True))
            rows = await self._db.fetch_all(
                f"""
                select {key}, array_remove(array[{named}], null)
                  from {table}
                 where {" or ".join(outside)}
                 order by {key}
                 limit 100
                """,  # noqa: S608 - names of this module
                {"first": LONG_AGO, "last": FAR_AHEAD},
            )
            found += [Untimely(table, name, wrong) for name, wrong in rows]
        return found

    async def known_workflows(self) -> set[str]:
        """Every workflow that holds a slot, waits for one, or follows an agent that has one."""
        rows = await self._db.fetch_all(
            """
            select workflow_id from scaler_spawning_agents where workflow_id is not null
            union
            select bound_workflow_id from scaler_spawning_agents where bound_workflow_id is not null
            union
            select workflow_id from scaler_waiters
            """
        )
        return {workflow_id for (workflow_id,) in rows}

    async def orphans(self, open_workflows: Iterable[str], older_than: timedelta, limit: int = 100) -> list[Orphan]:
        """Rows that are not closing, of none of these workflows. Ask Temporal of each: a list of workflows lags."""
        rows = await self._db.fetch_all(
            """
            select agent_id, state, workflow_id, workflow_first_run_id
              from scaler_spawning_agents
             where closing_at is null
               and workflow_id is not null
               and workflow_id <> all (%(open)s)
               and spawned_at < now() - %(older_than)s::interval
             order by spawned_at
             limit %(limit)s
            """,
            {"open": list(open_workflows), "older_than": older_than, "limit": limit},
        )
        return [Orphan(*row) for row in rows]

    async def agents(self) -> set[str]:
        """Everybody who holds a slot."""
        return {agent_id for (agent_id,) in await self._db.fetch_all("select agent_id from scaler_spawning_agents")}
