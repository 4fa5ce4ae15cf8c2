"""What takes minutes.

Random chaos for CHAOS_MINUTES (3; the long run is 30), from CHAOS_SEED (drawn and printed); a burst of CHAOS_BURST
(1000) provisions of whose creates' replies a tenth is lost.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest

from tests.integration.reclaim.burst import burst
from tests.integration.reclaim.rig import SharedCloud, at_home
from tests.support.chaos import guarantees
from tests.support.chaos.checker import Kind
from tests.support.chaos.fleet import running_fleet
from tests.support.chaos.storm import Fate, Figures, Plan, Storm, Strike
from tests.support.namespaces import Namespaces

BURST = int(os.environ.get("CHAOS_BURST", "1000"))
MINUTES = float(os.environ.get("CHAOS_MINUTES", "3"))
LONG = 20
"""Minutes from which on the figures are worth writing down."""
A_MINUTE = 34
"""Provisions: a thousand in thirty minutes."""


@pytest.mark.scenario("S12", "S13", "S20", "S21", "S23", "S24")
@pytest.mark.timeout(MINUTES * 60 + 600)
async def test_in_random_chaos_nothing_leaks_and_nothing_busy_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(2**32))  # noqa: S311 - it is printed
    with capsys.disabled():
        print(f"\nCHAOS_SEED={seed} CHAOS_MINUTES={MINUTES:g}")
    async with running_fleet() as fleet:
        storm = Storm(fleet, seed)

        figures = await storm.run(MINUTES)

    with capsys.disabled():
        print(figures)
    if MINUTES >= LONG:
        guarantees.write("storm", guarantees.storm(figures))
    assert [str(violation) for violation in storm.violations] == []
    assert all(figures.found[kind] == 0 for kind in Kind)
    assert figures.provisions >= MINUTES * A_MINUTE
    assert figures.missed() == []
    assert figures.landed[Fate.RESET.value] > 0


@pytest.mark.scenario("S03")
@pytest.mark.timeout(1800)
async def test_after_a_burst_of_a_thousand_with_lost_replies_what_runs_is_what_has_a_row(
    namespaces: Namespaces, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    async with at_home(await namespaces.take(), database_url, SharedCloud()) as home:
        await burst(home, BURST)

    with capsys.disabled():
        print(f"\n{BURST} provisions, {BURST // 10} replies lost: {time.monotonic() - began:.0f} s")


@pytest.mark.parametrize(
    ("meant", "landed", "missed"),
    [(40, 0, ["workflow reset: 0 of 40"]), (40, 7, ["workflow reset: 7 of 40"]), (40, 8, []), (4, 0, [])],
)
def test_a_storm_whose_resets_come_too_late_is_no_proof(meant: int, landed: int, missed: list[str]) -> None:
    fates, hits = Counter({Fate.RESET.value: meant}), Counter({Fate.RESET.value: landed})

    figures = Figures(1, 3.0, 100, 50, Counter(), Counter(), fates, Counter(), hits)

    assert figures.missed() == missed


def test_a_seed_gives_the_same_storm_again() -> None:
    for number in range(100):
        assert Plan.of(7, number) == Plan.of(7, number)
        assert Strike.of(7, number) == Strike.of(7, number)
    assert [Plan.of(7, n) for n in range(20)] != [Plan.of(8, n) for n in range(20)]
