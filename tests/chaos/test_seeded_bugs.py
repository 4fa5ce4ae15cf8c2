"""The checker can fail: each of six bugs, put into a fleet, turns it red at the invariant that the bug breaks."""

from __future__ import annotations

import pytest

from tests.support.chaos.bout import verdict
from tests.support.chaos.bugs import BUGS
from tests.support.chaos.fleet import running_fleet


async def test_without_a_bug_the_same_load_breaks_no_invariant() -> None:
    async with running_fleet(workers=2, gateways=1) as fleet:
        assert [str(violation) for violation in await verdict(fleet)] == []


@pytest.mark.parametrize("bug", list(BUGS))
async def test_a_seeded_bug_turns_the_checker_red(bug: str) -> None:
    async with running_fleet(workers=2, gateways=1, bug=bug) as fleet:
        violations = await verdict(fleet)

    assert BUGS[bug].breaks in {violation.kind.invariant for violation in violations}
