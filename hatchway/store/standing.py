"""How the cluster stands: what each cap has left, who waits, and what stands in the way. For people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hatchway.store.pool import Database


@dataclass(frozen=True, slots=True)
class Use:
    """One scope: what is reserved in it, and its caps. None = no cap."""

    scope: str
    """`global`, `pool:<name>` or `scaler:<name>`."""
    agents: int
    max_agents: int | None
    mcpu: int
    max_mcpu: int | None
    mem_bytes: int
    max_mem_bytes: int | None


@dataclass(frozen=True, slots=True)
class ScalerStanding:
    name: str
    use: Use
    pool: str | None
    """`pool:<name>`."""
    states: dict[str, int]
    """How many of its agents are granted, reserved, spawned, active, closing; none is left out."""
    waiting: int
    """Waiters that this scaler could serve."""
    oldest: timedelta | None
    accepting: bool
    retired: bool
    drained_at: datetime | None
    drained_by: str | None
    backoff_until: datetime | None
    failures: int
    """In a row, since the last adoption."""
    last_code: str | None
    last_message: str | None

    @property
    def draining(self) -> bool:
        return not self.accepting and not self.retired


@dataclass(frozen=True, slots=True)
class Standing:
    scalers: list[ScalerStanding]
    shared: list[Use]
    """The pools, and `global` last."""
    waiting: int


class Standings:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def take(self) -> Standing:
        """One look at everything. A retired scaler is shown as long as agents of it, or waiters for it, are there."""
        states = await self._states()
        lines = await self._lines()
        rows = await self._db.fetch_all(
            """
            select c.scope, c.agents, c.max_agents, c.mcpu, c.max_mcpu, c.mem_bytes, c.max_mem_bytes,
                   c.scaler_name, c.pool, c.accepting, c.retired, c.drained_at, c.drained_by,
                   case when f.backoff_until > now() then f.backoff_until end, coalesce(f.consecutive, 0),
                   f.last_code, f.last_message
              from scaler_capacity c
              left join scaler_failures f using (scaler_name)
             order by c.scope = 'global', c.scope
            """
        )
        scalers, shared = [], []
        for row in rows:
            use = Use(*row[:7])
            name, pool, accepting, retired, drained_at, drained_by, until, failures, code, message = row[7:]
            if name is None:
                shared.append(use)
                continue
            waiting, oldest = lines.get(name, (0, None))
            if retired and not use.agents and not waiting:
                continue
            scalers.append(
                ScalerStanding(
                    name, use, pool, states.get(name, {}), waiting, oldest, accepting, retired, drained_at, drained_by,
                    until, failures, code if failures else None, message if failures else None,
                )
            )  # fmt: skip
        waiting = await self._db.fetch_value("select count(*) from scaler_waiters where rank = 1")
        return Standing(scalers, shared, waiting)

    async def _states(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for name, state, number in await self._db.fetch_all(
            """
            select scaler_name, state, count(*)
              from scaler_spawning_agents
             group by scaler_name, state
            """
        ):
            found.setdefault(name, {})[state] = number
        return found

    async def _lines(self) -> dict[str, tuple[int, timedelta]]:
        rows = await self._db.fetch_all(
            """
            select scaler_name, count(distinct agent_id), now() - min(enqueued_at)
              from scaler_waiters
             where not parked
             group by scaler_name
            """
        )
        return {name: (number, oldest) for name, number, oldest in rows}
