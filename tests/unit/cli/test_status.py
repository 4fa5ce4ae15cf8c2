"""What `hatchway status` says for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hatchway.cli.status import lines

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def use() -> dict[str, Any]:
    return {kind: {"used": 0, "cap": None} for kind in ("agents", "cpus", "memory_bytes")}


def scaler(**fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "scaler": "s",
        "pool": None,
        "states": {},
        "waiting": 0,
        "oldest_s": None,
        "draining": False,
    }
    quiet: dict[str, Any] = {
        "drained_at": None,
        "drained_by": None,
        "retired": False,
        "backoff_until": None,
        "failures": 0,
    }
    return {**plain, **quiet, "last_failure": None, **use(), **fields}


def test_times_are_told_in_utc_whatever_the_time_zone_of_the_database() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-5)))
    found = scaler(backoff_until=elsewhere, failures=2, draining=True, drained_at=elsewhere, drained_by="op")

    said = "\n".join(lines({"scalers": [found], "shared": [], "line": [], "waiting": 0}))

    assert "backs off until 12:00:00 UTC" in said
    assert "draining since 2026-01-02 12:00:00 UTC, by op" in said
