"""A reply that is lost after the commit is settled by calling again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hatchway.errors import StoreUnreachable
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.claims import Claims, Redeemed
from hatchway.store.outcomes import Completed, Outcomes
from hatchway.store.pool import Database
from hatchway.store.slots import Held, Released, Slots, Stamped
from tests.integration.store.answer_cutter import AnswerCutter
from tests.integration.store.factory import SCALER, counters_are_right, minted, reservation, set_caps

CUTS = 20


@pytest.fixture
async def fragile(dsn: str) -> AsyncIterator[tuple[AnswerCutter, Database]]:
    async with AnswerCutter.before(dsn) as (cutter, through), Database.open(through, max_size=1) as db:
        yield cutter, db


async def lost_then_again(fragile: tuple[AnswerCutter, Database], call: Callable[[], Awaitable[object]]) -> object:
    cutter, db = fragile
    await db.ping()  # the one connection stands again after the last cut: the next answer is this call's
    cuts = cutter.cuts
    cutter.arm()
    with pytest.raises(StoreUnreachable):
        await call()
    assert cutter.cuts == cuts + 1
    return await call()


async def test_every_step_whose_reply_is_lost_is_settled_by_the_next_call(
    db: Database, fragile: tuple[AnswerCutter, Database]
) -> None:
    # Arrange: `db` goes straight to the server and sees the truth.
    cut = fragile[1]
    await set_caps(db, {SCALER: 2})
    slots, adoption, outcomes, claims = Slots(cut), Adoption(cut), Outcomes(cut), Claims(cut)

    for n in range(CUTS):
        agent, claim = f"a{n}", f"claim-{n}"

        # Act
        reserved = await lost_then_again(fragile, lambda a=agent: slots.reserve(reservation(a)))  # type: ignore[misc]
        during = [r.agent_id for r in await Slots(db).list()]
        stamped = await lost_then_again(fragile, lambda a=agent: slots.stamp_host(a, "host-1"))  # type: ignore[misc]
        mint = await lost_then_again(fragile, lambda a=agent, c=claim: minted(cut, a, c))  # type: ignore[misc]
        redeemed = await lost_then_again(fragile, lambda c=claim: claims.redeem(c, "n", f"t-{c}"))  # type: ignore[misc]
        adopted = await lost_then_again(fragile, lambda a=agent: adoption.adopt(a, "g", "reg"))  # type: ignore[misc]
        done = await lost_then_again(fragile, lambda a=agent: outcomes.complete(a, "reg", "failed", 1))  # type: ignore[misc]
        closed = await lost_then_again(fragile, lambda a=agent: adoption.close(a, "idle", only_unadopted=False))  # type: ignore[misc]
        released = await lost_then_again(fragile, lambda a=agent: slots.release(a, "idle"))  # type: ignore[misc]

        # Assert
        assert isinstance(reserved, Held)
        assert reserved.resumed
        assert during == [agent]
        assert isinstance(stamped, Stamped)
        assert mint is True
        assert redeemed == Redeemed(agent)
        assert isinstance(adopted, Adopted)
        assert isinstance(done, Completed)
        assert (done.result, done.exit_code) == ("failed", 1)
        assert getattr(closed, "kind", None) == "closing"
        assert isinstance(released, Released)
        assert (released.existed, released.end_reason, released.result) == (False, "completed", "failed")
    assert await Slots(db).list() == []
    assert await counters_are_right(db)
