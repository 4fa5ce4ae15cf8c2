"""What runs for each provision reads a handful of rows, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hatchway.store.adoption import Adoption
from hatchway.store.claims import Claims
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.slots import Slots
from hatchway.store.tokens import Tokens
from tests.integration.store.factory import minted, reservation
from tests.integration.store.full import LARGE, ROWS


@pytest.fixture(scope="module")
async def full(full_dsn: str) -> AsyncIterator[Database]:
    # One connection: the counters of what it read are flushed by itself, on demand.
    async with Database.open(full_dsn, min_size=1, max_size=1) as db:
        yield db


async def rows_scanned(db: Database) -> int:
    """How many rows of the large tables sequential scans have read so far."""
    await db.fetch_all("select pg_stat_force_next_flush()")
    await db.fetch_all("select pg_stat_clear_snapshot()")
    total: int = await db.fetch_value(
        "select sum(seq_tup_read)::bigint from pg_stat_user_tables where relname = any (%(large)s)",
        {"large": list(LARGE)},
    )
    return total


async def steps(db: Database, agent: str) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    slots, adoption, outcomes = Slots(db), Adoption(db), Outcomes(db)

    async def reserve(agent_id: str, **wanted: object) -> object:
        return await slots.reserve(reservation(agent_id, **wanted))  # type: ignore[arg-type]

    return [
        ("reserve", lambda: reserve(agent, job_id=f"job-of-{agent}")),
        ("reserve again", lambda: reserve(agent, job_id=f"job-of-{agent}")),
        ("reserve a taken job", lambda: reserve("x", job_id="j77")),
        ("reserve a waiting job", lambda: reserve("x", job_id="wj77")),
        ("stamp", lambda: slots.stamp_host(agent, "host-1")),
        ("stamp an engine", lambda: slots.stamp_engine(agent, "engine-1")),
        ("mint", lambda: minted(db, agent, f"claim-of-{agent}")),
        ("get", lambda: slots.get(agent)),
        ("redeem", lambda: Claims(db).redeem(f"claim-of-{agent}", "n", f"t-{agent}")),
        ("token", lambda: Tokens(db).lookup(f"t-{agent}")),
        ("adopt", lambda: adoption.adopt(agent, "gateway-1", "reg-1")),
        ("beat", lambda: Presence(db).beat("gateway-1", [(agent, "reg-1"), ("a5", "reg-1")])),
        ("complete", lambda: outcomes.complete(agent, "reg-1", "succeeded", 0)),
        ("completion", lambda: outcomes.completion(agent)),
        ("close", lambda: adoption.close(agent, "completed", only_unadopted=False)),
        ("refusal", lambda: outcomes.refusal(agent)),
        ("release", lambda: slots.release(agent, "completed", "succeeded")),
        ("outcome", lambda: outcomes.get(agent)),
        ("outcomes of a job", lambda: outcomes.by_job("oj77")),
        ("place in the line", lambda: slots.waiting("w3")),
    ]


@pytest.mark.parametrize("line", [True, False], ids=["behind a line of 10,000", "no line"])
async def test_no_step_of_a_provision_scans_a_large_table(full: Database, line: bool) -> None:
    if not line:
        await full.fetch_all("delete from scaler_waiters")
    read = {}
    for name, step in await steps(full, f"agent-{line}"):
        before = await rows_scanned(full)
        await step()
        read[name] = await rows_scanned(full) - before

    assert {name: rows for name, rows in read.items() if rows > 20} == {}


async def test_the_counter_of_scanned_rows_sees_a_scan(full: Database) -> None:
    """The test above can fail."""
    before = await rows_scanned(full)

    await full.fetch_all("select count(*) from scaler_spawning_agents where owner_instance_id = 'nobody'")

    assert await rows_scanned(full) - before >= ROWS
