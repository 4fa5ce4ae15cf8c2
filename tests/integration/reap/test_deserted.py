"""A busy agent whose gateway is gone is given up only where it is known to have had somewhere else to go."""

from __future__ import annotations

import pytest

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import ProvisionState
from tests.integration.reap.facts import gateway, heard_at, redeemed, silent, state_of
from tests.support.lab import Lab
from tests.support.stack import laptop

S = ProvisionState


async def _busy(lab: Lab, job_id: str, at: str) -> Started:
    started = await lab.provision(job_id=job_id)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await redeemed(lab.db)
    await lab.adopt(started, instance=at)
    await lab.reaches(started, S.ACTIVE)
    return started


async def _reaped(lab: Lab) -> dict[str, int]:
    """What a pass has done, without its zeros."""
    swept = await lab.sweep()
    assert swept.failed == {}
    return {what: number for what, number in swept.steps["reap"].done.items() if number}


@pytest.fixture
async def usual(lab: Lab) -> Lab:
    """The windows that an installation has when it says nothing. One gateway is gone for good, another one lives."""
    await lab.apply(laptop())
    await gateway(lab.db, "gateway-a", silent_for=4000)
    await gateway(lab.db, "gateway-b")
    return lab


async def test_a_gateway_where_nobody_came_its_way_condemns_no_busy_agent_before_the_stranded_timeout(
    usual: Lab,
) -> None:
    """For all that is known, the other gateway has never been behind the agent's URL."""
    started = await _busy(usual, "job-1", "gateway-a")
    await silent(usual.db, 300)
    beyond_the_grace = await _reaped(usual)
    state = await state_of(usual, started)
    await silent(usual.db, 1799)
    just_before = await _reaped(usual)
    await silent(usual.db, 1800)

    stranded = await _reaped(usual)

    assert (beyond_the_grace, state, just_before, stranded) == ({}, "active", {}, {"condemned": 1})
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    await usual.nothing_left()


async def test_a_gateway_where_another_agent_is_heard_by_the_same_url_was_somewhere_to_go(usual: Lab) -> None:
    started = await _busy(usual, "job-1", "gateway-a")
    other = await _busy(usual, "job-2", "gateway-b")
    await silent(usual.db, 120, started.agent_id)
    await heard_at(usual.db, "gateway-b", other, for_s=120)

    done = await _reaped(usual)

    assert done == {"condemned": 1}
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    assert await state_of(usual, other) == "active"
    await usual.complete(other)
    await usual.outcome(other)
    await usual.nothing_left()
