"""Agents whose slots were reserved under an earlier configuration than the one in force."""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.store.pool import Database


@dataclass(frozen=True, slots=True)
class FormerPlace:
    """Agents of this scaler, as that version of the configuration had it, stand on this host, or on none yet.

    `spawning`: some of them are still to be made, or made again.
    """

    scaler: str
    config_version: int
    host_id: str | None
    spawning: bool


class Former:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def places(self, current: int) -> list[FormerPlace]:
        """Where agents stand that another version than `current` has made. One look at every row."""
        rows = await self._db.fetch_all(
            """
            select scaler_name, config_version, host_id, bool_or(state in ('granted', 'reserved'))
              from scaler_spawning_agents
             where (host_id is not null or state in ('granted', 'reserved'))
               and config_version <> %(current)s
             group by scaler_name, config_version, host_id
             order by scaler_name, config_version desc, host_id
            """,
            {"current": current},
        )
        return [FormerPlace(*row) for row in rows]
