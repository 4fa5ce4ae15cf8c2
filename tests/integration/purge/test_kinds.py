"""What is deleted of each kind, and what is not, however old it is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hatchway.model import PurgeKind
from hatchway.store.claims import Claims
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.purging import Purging
from hatchway.store.slots import Slots, Waiting
from tests.integration.store.factory import SCALER, adopted, candidate, held, minted, reservation, set_caps

HOUR = timedelta(hours=1)
LONG_AGO = timedelta(hours=2)


@pytest.fixture(autouse=True)
async def scaler(db: Database) -> None:
    await set_caps(db, {SCALER: 5})


async def _left(db: Database, table: str, column: str) -> list[str]:
    rows = await db.fetch_all(f"select {column} from {table} order by 1")  # noqa: S608
    return [name for (name,) in rows]


async def _age(db: Database, table: str, *columns: str) -> None:
    sets = ", ".join(f"{column} = {column} - interval '2 hours'" for column in columns)
    await db.fetch_all(f"update {table} set {sets}")  # noqa: S608


async def test_claims_go_once_both_their_bounds_are_past_the_retention(db: Database) -> None:
    for agent in ("past", "late-deadline", "no-deadline"):
        await held(db, agent)
        await minted(db, agent, f"claim-of-{agent}")
    await _age(db, "scaler_pending_claims", "expires_at", "created_at")
    await held(db, "fresh")
    await minted(db, "fresh", "claim-of-fresh")
    await db.fetch_all("update scaler_spawning_agents set deadline_at = now() - interval '2 hours'")
    await db.fetch_all("update scaler_spawning_agents set deadline_at = now() where agent_id = 'late-deadline'")
    await db.fetch_all("update scaler_spawning_agents set deadline_at = null where agent_id = 'no-deadline'")

    purged = await Purging(db).purge(PurgeKind.CLAIMS, HOUR)

    assert purged == 2
    assert await _left(db, "scaler_pending_claims", "claim_hash") == ["claim-of-fresh", "claim-of-late-deadline"]


async def test_tokens_go_that_nobody_registered_with(db: Database) -> None:
    for agent in ("registered", "expired", "fresh"):
        await held(db, agent)
        await minted(db, agent, f"claim-of-{agent}")
        await Claims(db).redeem(f"claim-of-{agent}", "nonce", f"token-of-{agent}")
    await adopted(db, "registered")
    await db.fetch_all(
        "update scaler_agent_tokens set minted_at = now() - interval '3 hours',"
        " expires_at = expires_at - interval '2 hours' where agent_id <> 'fresh'"
    )

    purged = await Purging(db).purge(PurgeKind.TOKENS, HOUR)

    assert purged == 1
    assert await _left(db, "scaler_agent_tokens", "agent_id") == ["fresh", "registered"]


async def test_outcomes_go_whose_agent_holds_no_slot_and_does_not_wait(db: Database) -> None:
    for agent in ("ended", "recent", "standing"):
        await adopted(db, agent, f"job-of-{agent}")
    await Slots(db).release("ended", "completed", "succeeded")
    await _age(db, "scaler_provision_outcomes", "updated_at", "recorded_at")
    await Slots(db).release("recent", "completed", "succeeded")
    await set_caps(db, {SCALER: 0})
    await set_caps(db, {SCALER: 1})
    waits = await Slots(db).reserve(reservation("waits", candidates=[candidate()]))
    await db.fetch_all(
        "insert into scaler_provision_outcomes (agent_id, updated_at) values ('waits', now() - interval '2 hours')"
    )

    purged = await Purging(db).purge(PurgeKind.OUTCOMES, HOUR)

    assert isinstance(waits, Waiting)
    assert purged == 1
    assert await _left(db, "scaler_provision_outcomes", "agent_id") == ["recent", "standing", "waits"]


async def test_completions_go_with_the_memory_that_the_job_was_served(db: Database) -> None:
    for agent in ("ended", "at-work-for-long", "ended-just-now"):
        await adopted(db, agent, f"job-of-{agent}")
    await _age(db, "scaler_agent_jobs", "correlated_at")
    for agent in ("ended", "ended-just-now"):
        await Outcomes(db).complete(agent, "reg-1", "succeeded", 0)
        await Slots(db).release(agent, "completed")
    await db.fetch_all(
        "update scaler_agent_jobs set completed_at = now() - interval '2 hours' where agent_id = 'ended'"
    )

    purged = await Purging(db).purge(PurgeKind.JOBS, HOUR)

    assert purged == 1
    assert await _left(db, "scaler_agent_jobs", "agent_id") == ["at-work-for-long", "ended-just-now"]


async def test_presence_goes_that_belongs_to_nobody(db: Database) -> None:
    await adopted(db, "silent-for-long")
    await db.fetch_all(
        "insert into scaler_agent_presence (agent_id, instance_id) values ('nobody', 'g'), ('nobody-else', 'g')"
    )
    await _age(db, "scaler_agent_presence", "last_seen_at")
    await db.fetch_all("update scaler_agent_presence set last_seen_at = now() where agent_id = 'nobody-else'")

    purged = await Purging(db).purge(PurgeKind.PRESENCE, HOUR)

    assert purged == 1
    assert await _left(db, "scaler_agent_presence", "agent_id") == ["nobody-else", "silent-for-long"]


async def test_instances_go_that_are_dead_and_that_no_agent_names(db: Database) -> None:
    presence = Presence(db)
    for instance in ("gateway-1", "gateway-2", "dead", "worker-dead"):
        await presence.instance_beat(instance, "gateway", "1", [], None)
    await adopted(db, "adopted-by-1")
    await adopted(db, "heard-by-2")
    await presence.beat("gateway-2", [("heard-by-2", "reg-1")])
    await _age(db, "scaler_instances", "last_seen_at")
    await presence.instance_beat("alive", "gateway", "1", [], None)

    purged = await Purging(db).purge(PurgeKind.INSTANCES, HOUR)

    assert purged == 2
    assert await _left(db, "scaler_instances", "instance_id") == ["alive", "gateway-1", "gateway-2"]


async def test_a_batch_takes_the_oldest_and_no_more_than_it_may(db: Database) -> None:
    await db.fetch_all(
        "insert into scaler_provision_outcomes (agent_id, updated_at)"
        " select 'a' || n, now() - make_interval(hours => n) from generate_series(2, 8) n"
    )

    batches = [await Purging(db).purge(PurgeKind.OUTCOMES, HOUR, batch=3)]
    after_one = await _left(db, "scaler_provision_outcomes", "agent_id")
    batches += [await Purging(db).purge(PurgeKind.OUTCOMES, HOUR, batch=3) for _ in range(3)]

    assert batches == [3, 3, 1, 0]
    assert after_one == ["a2", "a3", "a4", "a5"]
