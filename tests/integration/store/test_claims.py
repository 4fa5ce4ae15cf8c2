"""A claim is spent once, commits before its token leaves, and the token then lives as long as its agent."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from hatchway.store.adoption import Adoption
from hatchway.store.claims import Claims, Redeemed, Refused, RefusedBecause
from hatchway.store.pool import Database
from hatchway.store.presence import Beat, Presence
from hatchway.store.slots import Slots
from hatchway.store.tokens import Tokens
from tests.integration.store.factory import RowBarrier, held, minted

SECOND = timedelta(seconds=1)


async def age_everything(db: Database, by: timedelta) -> None:
    """As if the row had been made `by` earlier, with all that hangs on it."""
    await db.fetch_all(
        """
        update scaler_spawning_agents
           set spawned_at = spawned_at - %(by)s, adopted_at = adopted_at - %(by)s, deadline_at = deadline_at - %(by)s
        """,
        {"by": by},
    )
    await db.fetch_all(
        "update scaler_agent_tokens set minted_at = minted_at - %(by)s, expires_at = expires_at - %(by)s", {"by": by}
    )
    await db.fetch_all(
        "update scaler_pending_claims set created_at = created_at - %(by)s, expires_at = expires_at - %(by)s",
        {"by": by},
    )


@pytest.mark.scenario("S28")
async def test_one_claim_redeemed_twice_at_once_has_one_success(dsn: str, db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1")
    claims = Claims(db)

    answers = await RowBarrier(dsn).race(
        ["a1"], lambda: [claims.redeem("claim-1", "nonce-1", "t1"), claims.redeem("claim-1", "nonce-2", "t2")]
    )

    assert Redeemed("a1") in answers
    assert Refused(RefusedBecause.CONSUMED, "a1") in answers
    winner = ["t1", "t2"][answers.index(Redeemed("a1"))]
    assert await db.fetch_all("select token_hash from scaler_agent_tokens") == [(winner,)]


async def test_the_same_code_and_nonce_at_once_both_get_the_one_token(dsn: str, db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1")
    claims = Claims(db)

    answers = await RowBarrier(dsn).race(["a1"], lambda: [claims.redeem("claim-1", "n", "t") for _ in range(2)])

    assert answers == [Redeemed("a1"), Redeemed("a1")]
    assert await db.fetch_all("select token_hash from scaler_agent_tokens") == [("t",)]


async def test_a_lost_reply_can_be_asked_for_again_after_the_claims_expiry_until_registration(db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1")
    claims = Claims(db)
    await claims.redeem("claim-1", "n", "t")
    await age_everything(db, timedelta(minutes=6))

    again = await claims.redeem("claim-1", "n", "t")
    await Adoption(db).adopt("a1", "gateway-1", "reg-1")
    registered = await claims.redeem("claim-1", "n", "t")

    assert again == Redeemed("a1")
    assert registered == Refused(RefusedBecause.CONSUMED, "a1")


@pytest.mark.parametrize(
    ("claim_ttl", "row_lives", "valid"),
    [(60, 60, True), (60, -1, True), (-1, 60, True), (-1, -1, False)],
    ids=["both live", "its own expiry is later", "the row's deadline is later", "both are over"],
)
async def test_a_claim_is_valid_until_the_later_of_its_expiry_and_its_rows_deadline(
    db: Database, claim_ttl: int, row_lives: int, valid: bool
) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1", ttl=claim_ttl * SECOND)
    await db.fetch_all(
        "update scaler_spawning_agents set deadline_at = now() + %(lives)s", {"lives": row_lives * SECOND}
    )

    answer = await Claims(db).redeem("claim-1", "n", "t")

    assert answer == (Redeemed("a1") if valid else Refused(RefusedBecause.EXPIRED, "a1"))


async def test_redeeming_one_code_spends_all_codes_of_the_agent(db: Database) -> None:
    for agent, code in (("a1", "claim-1"), ("a1", "claim-2"), ("a2", "claim-3")):
        await Slots(db).get(agent) or await held(db, agent)
        await minted(db, agent, code)
    claims = Claims(db)

    await claims.redeem("claim-1", "n", "t1")

    assert await claims.redeem("claim-2", "n", "t2") == Refused(RefusedBecause.CONSUMED, "a1")
    assert await claims.redeem("claim-3", "n", "t3") == Redeemed("a2")


async def test_a_claim_of_a_closing_or_released_agent_is_refused_and_none_can_be_minted(db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1")
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)

    assert isinstance(await Claims(db).redeem("claim-1", "n", "t"), Refused)
    assert await minted(db, "a1", "claim-2") is False
    await Slots(db).release("a1", "cancelled")
    assert await minted(db, "a1", "claim-3") is False
    assert await Claims(db).redeem("claim-1", "n", "t") == Refused(RefusedBecause.UNKNOWN)


async def test_a_claim_minted_while_the_row_closes_is_never_redeemed(dsn: str, db: Database) -> None:
    await held(db, "a1")
    adoption = Adoption(db)

    await RowBarrier(dsn).race(
        ["a1"],
        lambda: [minted(db, "a1", "claim-1"), adoption.close("a1", "cancelled", only_unadopted=False)],
    )

    assert isinstance(await Claims(db).redeem("claim-1", "n", "t"), Refused)


async def test_the_token_stays_through_closing_and_goes_with_the_row(db: Database) -> None:
    await held(db, "a1", "job-1")
    await minted(db, "a1", "claim-1")
    await Claims(db).redeem("claim-1", "n", "t")
    tokens = Tokens(db)

    before = await tokens.lookup("t")
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)
    closing = await tokens.lookup("t")
    await Slots(db).release("a1", "cancelled")

    assert before is not None
    assert (before.agent_id, before.closing, before.job_id, before.workflow_id) == (
        "a1", False, "job-1", "provision/a1",
    )  # fmt: skip
    assert closing is not None
    assert (closing.closing, closing.end_reason) == (True, "cancelled")
    assert await tokens.lookup("t") is None


async def test_a_token_expires_before_registration(db: Database) -> None:
    await held(db, "a1")
    await minted(db, "a1", "claim-1", token_ttl=timedelta(minutes=10))
    await Claims(db).redeem("claim-1", "n", "t")

    await age_everything(db, timedelta(minutes=11))

    assert await Tokens(db).lookup("t") is None


async def two_hours_into_a_job(db: Database) -> None:
    await held(db, "a1", "job-1")
    await minted(db, "a1", "claim-1")
    await Claims(db).redeem("claim-1", "n", "t")
    await Adoption(db).adopt("a1", "gateway-1", "reg-1")
    await age_everything(db, timedelta(hours=2))


@pytest.mark.scenario("S43")
async def test_a_registered_token_outlives_a_job_of_two_hours(db: Database) -> None:
    await two_hours_into_a_job(db)

    token = await Tokens(db).lookup("t")
    beats = await Presence(db).beat("gateway-1", [("a1", "reg-1")])

    assert token is not None
    assert not token.closing
    assert beats["a1"].answer is Beat.OK


async def test_without_the_registration_the_same_token_would_have_died(db: Database) -> None:
    """The test above can fail: an adoption that leaves the expiry alone kills the two-hour job."""
    await db.fetch_all(
        """
        create or replace function hatchway_register_token(p_agent text) returns void language plpgsql
        as $$ begin return; end $$
        """
    )
    await two_hours_into_a_job(db)

    assert await Tokens(db).lookup("t") is None


async def test_hashes_are_all_that_the_database_holds_of_a_claim(db: Database) -> None:
    """The functions of the store cannot take a code or token: they have no argument for one."""
    await held(db, "a1")
    await minted(db, "a1", "claim-1")
    await asyncio.gather(Claims(db).redeem("claim-1", "nonce", "t"))

    columns = await db.fetch_all(
        """
        select column_name
          from information_schema.columns
         where table_name in ('scaler_pending_claims', 'scaler_agent_tokens')
           and (column_name like '%code%' or column_name like '%secret%' or column_name in ('token', 'claim', 'nonce'))
        """
    )
    assert columns == []
