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
from tests.integration.store.factory import minted, reservation, set_caps
from tests.support.postgres_fixtures import PostgresServer

ROWS = 100_000
SCALERS = 20
LARGE = (
    "scaler_spawning_agents",
    "scaler_reservations",
    "scaler_waiters",
    "scaler_provision_outcomes",
    "scaler_agent_jobs",
    "scaler_pending_claims",
    "scaler_agent_tokens",
    "scaler_agent_presence",
)


@pytest.fixture(scope="module")
async def full(server: PostgresServer) -> AsyncIterator[Database]:
    """A database with 100,000 agents, as many outcomes, and 5,000 agents in the line of a full scaler."""
    dsn = server.database()
    # One connection: the counters of what it read are flushed by itself, on demand.
    async with Database.open(dsn, min_size=1, max_size=1) as db:
        await set_caps(db, {**{f"s{n}": None for n in range(SCALERS)}, "full": 1})
        await db.fetch_all("alter table scaler_reservations disable trigger hatchway_count")
        await db.fetch_all(
            """
            insert into scaler_spawning_agents
              (agent_id, scaler_name, job_id, bound_job_id, workflow_id, workflow_first_run_id, host_id, state,
               adopted_by, adopted_at, registration_id, deadline_at)
            select 'a' || n, 's' || n %% %(scalers)s, 'j' || n, 'j' || n, 'w' || n, 'r' || n, 'h' || n %% 50, 'active',
                   'gateway-1', now(), 'reg-1', now() + interval '1 h'
              from generate_series(1, %(rows)s) n
            """,
            {"rows": ROWS, "scalers": SCALERS},
        )
        for statement in (
            "insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes)"
            " select agent_id, scaler_name, 1, 1 from scaler_spawning_agents",
            "insert into scaler_agent_presence (agent_id, instance_id)"
            " select agent_id, 'gateway-1' from scaler_spawning_agents",
            "insert into scaler_agent_tokens (token_hash, agent_id, claim_hash, registered_at)"
            " select 't' || agent_id, agent_id, 'c', now() from scaler_spawning_agents",
            "insert into scaler_pending_claims (claim_hash, claim_prefix, agent_id, scaler_name, agent_token_ttl_ms,"
            " expires_at) select 'c' || agent_id, 'c', agent_id, scaler_name, 1, now() from scaler_spawning_agents",
            "insert into scaler_provision_outcomes (agent_id, job_id, scaler_name)"
            " select 'o' || n, 'oj' || n, 's0' from generate_series(1, 100000) n",
            "insert into scaler_agent_jobs (agent_id, job_id)"
            " select 'o' || n, 'oj' || n from generate_series(1, 100000) n",
            "update scaler_capacity set agents = 1 where scaler_name = 'full'",
            "insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id,"
            " job_id, spawn) select 'w' || n, 1, 'full', 3, n, 0, 0, 'w' || n, 'wj' || n, '{}'"
            " from generate_series(1, 5000) n",
        ):
            await db.fetch_all(statement)
        await db.fetch_all("alter table scaler_reservations enable trigger hatchway_count")
        await db.fetch_all("analyze")
        yield db
    server.drop(dsn)


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
        ("rows of a job", lambda: slots.by_job("j77")),
        ("place in the line", lambda: slots.waiting("w3")),
    ]


@pytest.mark.parametrize("line", [True, False], ids=["behind a line of 5,000", "no line"])
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
