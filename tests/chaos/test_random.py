"""Random chaos for CHAOS_MINUTES (3; the long run is 30), from CHAOS_SEED (drawn and printed)."""

from __future__ import annotations

import os
import random

import pytest

from tests.support.chaos import guarantees
from tests.support.chaos.checker import Kind
from tests.support.chaos.fleet import running_fleet
from tests.support.chaos.storm import Plan, Storm, Strike

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


def test_a_seed_gives_the_same_storm_again() -> None:
    for number in range(100):
        assert Plan.of(7, number) == Plan.of(7, number)
        assert Strike.of(7, number) == Strike.of(7, number)
    assert [Plan.of(7, n) for n in range(20)] != [Plan.of(8, n) for n in range(20)]
