"""Failures of spawns, per scaler: in the database, so that every worker backs off. Any adoption clears it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hatchway.store.pool import Database
from hatchway.store.rows import instant, seconds

BASE = timedelta(seconds=30)
MAXIMUM = timedelta(minutes=15)
MESSAGE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Failures:
    """How a scaler fares since its last adoption. `until` is None when nothing holds it back."""

    consecutive: int
    until: datetime | None
    last_code: str | None
    last_message: str | None


class Backoff:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def failed(
        self,
        scaler: str,
        agent_id: str,
        *,
        began_at: datetime,
        code: str,
        message: str,
        base: timedelta = BASE,
        max: timedelta = MAXIMUM,
    ) -> Failures:
        """Count a failed spawn: base, doubled each time, at most `max`, times 0.8 to 1.0.

        `began_at` is when the attempt began, by the database's clock (`Stamped.row.read_at`): attempts that ran side by
        side count once, and so does a repeated call. `message` carries no secret.
        """
        answer = await self._db.call(
            "hatchway_failed",
            {
                "scaler": scaler,
                "agent_id": agent_id,
                "began_at": began_at.isoformat(),
                "code": code,
                "message": message[:MESSAGE_LIMIT],
                "base_s": seconds(base),
                "max_s": seconds(max),
            },
        )
        until = answer["backoff_until"]
        return Failures(
            answer["consecutive"],
            None if until is None else instant(until),
            answer["last_code"],
            answer["last_message"],
        )

    async def get(self, scaler: str) -> Failures | None:
        """None: it has never failed."""
        row = await self._db.fetch_one(
            """
            select consecutive, case when backoff_until > now() then backoff_until end, last_code, last_message
              from scaler_failures
             where scaler_name = %(scaler)s
            """,
            {"scaler": scaler},
        )
        return None if row is None else Failures(*row)
