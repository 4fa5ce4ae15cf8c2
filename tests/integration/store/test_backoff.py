"""Backoff counts outages, not spawns, and never exceeds its maximum."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from hatchway.store.backoff import Backoff, Failures
from hatchway.store.pool import Database

BASE, MAX = timedelta(seconds=30), timedelta(minutes=15)


async def now(db: Database) -> datetime:
    moment: datetime = await db.fetch_value("select clock_timestamp()")
    return moment


async def fail(db: Database, began_at: datetime, agent_id: str = "a1") -> Failures:
    return await Backoff(db).failed(
        "s1", agent_id, began_at=began_at, code="disk_full", message="no space", base=BASE, max=MAX
    )


@pytest.mark.parametrize("earlier", [0, 1, 2, 4, 5, 6, 40])
async def test_each_failure_doubles_the_wait_up_to_the_maximum(db: Database, earlier: int) -> None:
    await db.fetch_all(
        "insert into scaler_failures (scaler_name, consecutive) values ('s1', %(earlier)s)", {"earlier": earlier}
    )
    full = min(BASE * 2 ** min(earlier, 20), MAX)

    failures = await fail(db, await now(db))

    assert failures.consecutive == earlier + 1
    assert failures.until is not None
    left = failures.until - await now(db)
    assert 0.8 * full - timedelta(seconds=5) < left <= full


async def test_attempts_that_ran_side_by_side_and_repeats_count_once(db: Database) -> None:
    began = await now(db)
    first = await fail(db, began)

    repeated = await fail(db, began)
    beside = await fail(db, began + timedelta(microseconds=1), "a2")
    later = await fail(db, await now(db), "a3")

    assert [f.consecutive for f in (first, repeated, beside, later)] == [1, 1, 1, 2]
    assert repeated.until == beside.until == first.until
    assert (later.last_code, later.last_message) == ("disk_full", "no space")


async def test_a_scaler_that_never_failed_has_no_record(db: Database) -> None:
    assert await Backoff(db).get("s1") is None
