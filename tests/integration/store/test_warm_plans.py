"""What warm agents add to a provision and to a sweep walks no large table either."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.pool import Database
from hatchway.store.reservations import Held, Warm
from hatchway.store.slots import Slots
from hatchway.store.warm import WarmAgents
from tests.integration.store.factory import candidate, reservation
from tests.integration.store.full import LARGE
from tests.integration.store.plans import Plans, explaining

KEY = "as-it-is-made-now"
TIMES = 7
"""From the sixth time on a function's statement may run by a plan that was made for any parameters."""


@pytest.fixture(scope="module")
async def explained(full_dsn: str) -> AsyncIterator[tuple[Database, Plans]]:
    async with explaining(full_dsn) as both:
        yield both


async def _warm_life(db: Database, n: int) -> None:
    """Made, ready, taken, given back, taken again, bound, asked to go, released; and what looks at it meanwhile."""
    slots, warm, scaler = Slots(db), WarmAgents(db), f"s{n}"
    made, job = f"warm-{n}", f"job-{n}"
    fill = reservation(made, candidates=[replace(candidate(scaler), made_warm=KEY)], wait=False)
    takes = reservation(f"taker-{n}", candidates=[replace(candidate(scaler), takes_warm=KEY)], job_id=job)
    assert isinstance(await slots.reserve(replace(fill, warm_target=1)), Held)
    assert isinstance(await Adoption(db).adopt(made, "gateway-1", "reg-1"), Adopted)
    await warm.standing(scaler)
    await warm.offer([scaler, "full"])
    await warm.relieve("full", timedelta(0))
    assert isinstance(await slots.reserve(takes), Warm)
    await warm.unanswered(timedelta(0))
    assert (await warm.give_back(f"taker-{n}")).bound is None
    assert isinstance(await slots.reserve(takes), Warm)
    assert isinstance(await slots.reserve(takes), Warm)
    assert await warm.bind(made, job) is not None
    assert await warm.withdraw(made) is False
    assert await warm.retire([made]) == []
    await warm.pools()
    await slots.release(made, "completed")


async def test_no_step_of_a_warm_agent_walks_a_large_table(explained: tuple[Database, Plans]) -> None:
    db, plans = explained
    plans.clear()

    for n in range(TIMES):
        await _warm_life(db, n)

    assert plans.statements
    assert {(table, query) for table, query in plans.scanned() if table in LARGE} == set()
