"""Agents whose slots were reserved under an earlier configuration than the one in force."""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.store.pool import Database


@dataclass(frozen=True, slots=True)
class FormerPlace:
    """Agents of this scaler, as that version of the configuration had it, stand on this host."""

    scaler: str
    config_version: int
    host_id: str


class Former:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def places(self, current: int) -> list[FormerPlace]:
        """Where agents stand that another version than `current` has made. One look at every row."""
        rows = await self._db.fetch_all(
            """
            select distinct scaler_name, config_version, host_id
              from scaler_spawning_agents
             where host_id is not null
               and config_version <> %(current)s
             order by scaler_name, config_version desc, host_id
            """,
            {"current": current},
        )
        return [FormerPlace(*row) for row in rows]
