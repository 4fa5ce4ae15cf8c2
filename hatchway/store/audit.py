"""Whether what admission counts with is what is there. For `hatchway doctor`; nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hatchway.store.pool import Database


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
