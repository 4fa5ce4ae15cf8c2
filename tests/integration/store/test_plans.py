"""What admission runs under its lock, and what a sweep runs, walks no large table, by the plans of the statements."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from hatchway.model import EndReason, PurgeKind
from hatchway.reaping import Candidate, Rule, Windows
from hatchway.store.pool import Database
from hatchway.store.purging import Purging
from hatchway.store.reaping import Reaping, Sentence
from hatchway.store.slots import AtCapacity, Held, Slots, Waiting
from hatchway.store.waiters import Line
from tests.integration.store.factory import candidate, reservation
from tests.integration.store.full import LARGE
from tests.integration.store.plans import Plans, explaining

TIMES = 7
"""From the sixth time on a function's statement may run by a plan that was made for any parameters."""


@pytest.fixture(scope="module")
async def explained(full_dsn: str) -> AsyncIterator[tuple[Database, Plans]]:
    async with explaining(full_dsn) as both:
        yield both


async def reserve(db: Database, agent: str, scaler: str, **wanted: object) -> object:
    return await Slots(db).reserve(
        reservation(agent, job_id=f"job-of-{agent}", candidates=[candidate(scaler)], **wanted)  # type: ignore[arg-type]
    )


async def gets_a_slot(db: Database, n: int) -> None:
    assert isinstance(await reserve(db, f"new-{n}", f"s{n}"), Held)
    assert isinstance(await reserve(db, f"new-{n}", f"s{n}"), Held)
    await Slots(db).release(f"new-{n}", "released")


async def joins_the_line_and_leaves_it(db: Database, n: int) -> None:
    waiting = await reserve(db, f"late-{n}", "full")
    assert isinstance(waiting, Waiting)
    assert waiting.ahead == 1000  # it counts no farther
    assert isinstance(await reserve(db, f"late-{n}", "full"), Waiting)
    await Slots(db).release(f"late-{n}", "released")


async def is_refused(db: Database, n: int) -> None:
    assert isinstance(await reserve(db, f"quick-{n}", "full", wait=False), AtCapacity)


async def is_planned_anew(db: Database, n: int) -> None:
    """In the middle of the line, under a newer config."""
    agent = f"w{5000 + 2 * n}"
    answer = await Slots(db).reserve(
        reservation(agent, job_id=f"wj{5000 + 2 * n}", candidates=[candidate("full")], config_version=2)
    )
    assert isinstance(answer, Waiting)


async def hands_over(db: Database, n: int) -> None:
    holder = "holder-full" if n == 0 else f"w{2 * n}"
    released = await Slots(db).release(holder, "released")
    assert f"w{2 * n + 2}" in {wake.agent_id for wake in released.wake}
    assert isinstance(await reserve(db, f"w{2 * n + 2}", "full"), Held)


async def sweeps(db: Database, n: int) -> None:
    line = Line(db)
    await line.pump()
    await line.grants(timedelta(minutes=1))
    await line.place("w9998")
    await line.accept(f"s{n}", accepting=False)
    await line.accept(f"s{n}", accepting=True)


async def reaps(db: Database, n: int) -> None:
    """A page of agents, a look for where those of a host could have gone, and one that is condemned."""
    reaping, windows = Reaping(db), Windows()
    pages = reaping.pages(windows)
    page = await anext(pages)
    await pages.aclose()
    way = {"scaler": f"s{n}", "host_id": f"h{n}", "orchestrator_url": "http://gateway"}
    for_how_long = {"agent_timeout_s": 90, "silent_s": 45, "flap_grace_s": 120}
    assert await db.call("hatchway_reached", {"ways": [way], **for_how_long}) == []
    candidate_ = Candidate(f"a{n}", page.now, state_version=1)
    assert await reaping.condemn([Sentence(candidate_, Rule.LEFT, EndReason.HEARTBEAT_TIMEOUT)], windows) == []


async def purges(db: Database, n: int) -> None:
    """What there is much of. The others are few, or are read from one end to the other, once in five minutes."""
    for kind in (PurgeKind.CLAIMS, PurgeKind.OUTCOMES, PurgeKind.JOBS):
        assert await Purging(db).purge(kind, timedelta(hours=1)) == 0


@pytest.mark.parametrize(
    "step",
    [gets_a_slot, joins_the_line_and_leaves_it, is_refused, is_planned_anew, hands_over, sweeps, reaps, purges],
)
async def test_no_statement_walks_a_large_table(
    explained: tuple[Database, Plans], step: Callable[[Database, int], Awaitable[None]]
) -> None:
    db, plans = explained
    plans.clear()

    for n in range(TIMES):
        await step(db, n)

    assert len(plans.statements) > TIMES * 5  # those inside the functions were heard too
    assert {(table, statement) for table, statement in plans.scanned() if table in LARGE} == set()


async def test_the_plans_show_a_walk_inside_a_function(explained: tuple[Database, Plans]) -> None:
    """The test above can fail."""
    db, plans = explained
    await db.fetch_all(
        """
        create function walks() returns bigint language plpgsql as $$
        begin
          return (select count(*) from scaler_spawning_agents where owner_instance_id = 'nobody');
        end $$
        """
    )
    plans.clear()

    await db.fetch_all("select walks()")

    assert {table for table, _ in plans.scanned()} == {"scaler_spawning_agents"}
