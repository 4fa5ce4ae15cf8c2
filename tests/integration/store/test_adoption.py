"""The referee: an adoption and a close never both win."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from hatchway.store.adoption import Adopted, AdoptedByOther, Adoption, CloseAnswer, NoSuchProvision, TearingDown
from hatchway.store.backoff import Backoff
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.slots import Slots
from tests.integration.store.factory import HOUR, SCALER, RowBarrier, adopted, held, minted, set_caps

RACES = 1000
AT_ONCE = 20


async def test_adoption_and_deadline_together_have_one_winner(dsn: str) -> None:
    # Arrange
    chance = random.Random(7)  # noqa: S311 - reproducible, not secret
    wins = {"adopt": 0, "close": 0}
    async with Database.open(dsn, min_size=2 * AT_ONCE, max_size=2 * AT_ONCE) as db:
        await db._pool.wait(60)  # who waits for a lock waits five seconds: nobody has to connect first
        await set_caps(db, {SCALER: None})
        adoption, barrier = Adoption(db), RowBarrier(dsn)
        for batch in range(RACES // AT_ONCE):
            agents = [f"a{batch}-{n}" for n in range(AT_ONCE)]
            for agent in agents:
                await held(db, agent)
            calls = [(agent, kind) for agent in agents for kind in ("adopt", "close")]
            chance.shuffle(calls)

            # Act
            answers = await barrier.race(
                agents,
                lambda calls=calls: [  # type: ignore[misc]
                    adoption.adopt(agent, "gateway-1", "reg-1")
                    if kind == "adopt"
                    else adoption.close(agent, "adoption-timeout", only_unadopted=True)
                    for agent, kind in calls
                ],
            )

            # Assert
            said = dict(zip(calls, answers, strict=True))
            for row in await Slots(db).list():
                if row.agent_id not in agents:
                    continue
                adopt, close = said[row.agent_id, "adopt"], said[row.agent_id, "close"]
                assert isinstance(close, CloseAnswer)
                if isinstance(adopt, Adopted):
                    assert (close.kind, row.state) == ("adopted", "active")
                    wins["adopt"] += 1
                else:
                    assert isinstance(adopt, TearingDown)
                    assert (close.kind, row.state, row.adopted_by) == ("closing", "closing", None)
                    wins["close"] += 1
    assert sum(wins.values()) == RACES
    assert min(wins.values()) >= 100, wins


async def test_an_adoption_is_written_everywhere_at_once(db: Database) -> None:
    row = await adopted(db, "a1", "job-1")

    assert (row.state, row.adopted_by, row.registration_id) == ("active", "gateway-1", "reg-1")
    assert row.deadline_at is None
    written = await db.fetch_one(
        """
        select o.adopted_by, o.job_id, p.instance_id, j.job_id
          from scaler_provision_outcomes o
          join scaler_agent_presence p using (agent_id)
          join scaler_agent_jobs j using (agent_id)
        """
    )
    assert written == ("gateway-1", "job-1", "gateway-1", "job-1")


async def test_the_lifetime_runs_from_the_first_adoption(db: Database) -> None:
    await held(db, "a1")
    adoption = Adoption(db)
    first = await adoption.adopt("a1", "gateway-1", "reg-1", lifetime=HOUR)

    again = await adoption.adopt("a1", "gateway-2", "reg-1", lifetime=HOUR)

    assert isinstance(first, Adopted)
    assert isinstance(again, Adopted)
    assert first.row.adopted_at is not None
    assert first.row.deadline_at == first.row.adopted_at + HOUR
    assert (again.row.deadline_at, again.row.adopted_at) == (first.row.deadline_at, first.row.adopted_at)
    assert again.row.adopted_by == "gateway-2"


async def test_the_first_close_reason_stays_and_claims_go(db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "hash-1")
    adoption = Adoption(db)
    await adoption.close("a1", "adoption-timeout", only_unadopted=True)

    again = await adoption.close("a1", "cancelled", only_unadopted=False)

    assert (again.kind, again.end_reason) == ("closing", "adoption-timeout")
    assert await db.fetch_value("select count(*) from scaler_pending_claims") == 0
    assert await adoption.adopt("a1", "gateway-1", "reg-1") == TearingDown("adoption-timeout")


@pytest.mark.parametrize("only_unadopted", [True, False])
async def test_only_a_deadlines_close_loses_against_an_adoption(db: Database, only_unadopted: bool) -> None:
    await adopted(db, "a1")

    answer = await Adoption(db).close("a1", "cancelled", only_unadopted=only_unadopted)

    assert answer.kind == ("adopted" if only_unadopted else "closing")


async def test_a_released_agent_is_gone_and_its_end_is_told(db: Database) -> None:
    await adopted(db, "a1")
    await Slots(db).release("a1", "idle")

    assert await Adoption(db).adopt("a1", "gateway-1", "reg-1") == NoSuchProvision()
    assert await Adoption(db).close("a1", "cancelled", only_unadopted=False) == CloseAnswer("gone", None, "idle")


async def test_what_the_first_release_knew_of_the_compute_is_told(db: Database) -> None:
    await adopted(db, "a1")
    await Slots(db).release("a1", "idle", teardown="accepted")
    await Slots(db).release("a1", "idle", teardown="confirmed")

    closed = await Adoption(db).close("a1", "idle", only_unadopted=False)

    assert closed == CloseAnswer("gone", None, "idle", released=True, teardown="accepted")


async def test_a_row_that_was_lost_was_not_released(db: Database) -> None:
    """Its compute may stand: nobody has seen it gone, and it is to be torn down."""
    await adopted(db, "a1")
    await db.fetch_all("delete from scaler_spawning_agents")

    closed = await Adoption(db).close("a1", "idle", only_unadopted=False)

    assert (closed.kind, closed.released) == ("gone", False)


@pytest.mark.parametrize(
    ("gateway_silent", "agent_silent", "taken_over"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, True)],
)
async def test_another_registration_takes_over_only_when_agent_and_gateway_are_silent(
    db: Database, gateway_silent: bool, agent_silent: bool, taken_over: bool
) -> None:
    await adopted(db, "a1")
    await Presence(db).instance_beat("gateway-1", "gateway", "1", [], None)
    if gateway_silent:
        await db.fetch_all("update scaler_instances set last_seen_at = now() - interval '46 s'")
    if agent_silent:
        await db.fetch_all("update scaler_agent_presence set last_seen_at = now() - interval '46 s'")

    answer = await Adoption(db, timedelta(seconds=45)).adopt("a1", "gateway-2", "reg-2")

    if taken_over:
        assert isinstance(answer, Adopted)
        assert (answer.row.adopted_by, answer.row.registration_id) == ("gateway-2", "reg-2")
    else:
        assert answer == AdoptedByOther("gateway-1")


async def test_an_adoption_clears_its_scalers_backoff_and_no_others(db: Database) -> None:
    row = await held(db, "a1")
    for scaler in (SCALER, "other"):
        await Backoff(db).failed(scaler, "x", began_at=row.read_at, code="disk_full", message="no space")

    await Adoption(db).adopt("a1", "gateway-1", "reg-1")

    cleared, kept = await Backoff(db).get(SCALER), await Backoff(db).get("other")
    assert cleared is not None
    assert kept is not None
    assert (cleared.consecutive, cleared.until) == (0, None)
    assert (kept.consecutive, kept.until is not None) == (1, True)
