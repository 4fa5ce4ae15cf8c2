"""How many agents and waiters there are: for the gauges, read by each worker every ten seconds."""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.store.pool import Database


@dataclass(frozen=True, slots=True)
class Counts:
    agents: dict[tuple[str, str], int]
    """(scaler, state) to how many hold a slot."""
    reserved: dict[str, tuple[int, int]]
    """Scaler to reserved millicpu and bytes."""
    waiters: int
    oldest_waiter_seconds: float


class Census:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def take(self) -> Counts:
        """One look at the whole cluster. The reserved amounts are the counters that admission itself goes by."""
        agents = await self._db.fetch_all(
            """
            select scaler_name, state, count(*)
              from scaler_spawning_agents
             group by scaler_name, state
            """
        )
        reserved = await self._db.fetch_all(
            """
            select scaler_name, mcpu, mem_bytes
              from scaler_capacity
             where scaler_name is not null
            """
        )
        line = await self._db.fetch_one(
            """
            select count(distinct agent_id),
                   coalesce(extract(epoch from now() - min(enqueued_at)), 0)::float8
              from scaler_waiters
             where rank = 1
            """
        )
        waiters, oldest = line or (0, 0.0)
        return Counts(
            agents={(scaler, state): number for scaler, state, number in agents},
            reserved={scaler: (mcpu, mem_bytes) for scaler, mcpu, mem_bytes in reserved},
            waiters=waiters,
            oldest_waiter_seconds=oldest,
        )
