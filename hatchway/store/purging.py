"""Deletes what is spent. The rules are in `migrations/0001_purging.sql`."""

from __future__ import annotations

from datetime import timedelta

from hatchway.model import PurgeKind
from hatchway.store.pool import Database
from hatchway.store.rows import seconds

BATCH = 1000
"""Rows that one statement deletes: some 20 ms, for which it holds their locks."""


class Purging:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def purge(self, kind: PurgeKind, older_than: timedelta, batch: int = BATCH) -> int:
        """Delete at most `batch` that have been spent for that long; how many it were. Fewer than `batch`: no more are
        left, but for those that somebody holds locked.
        """
        purged: int = await self._db.call(
            "hatchway_purge", {"kind": kind.value, "older_than_s": seconds(older_than), "batch": batch}
        )
        return purged
