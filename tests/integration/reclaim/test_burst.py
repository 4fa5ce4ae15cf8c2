"""A burst of a hundred in which a tenth of the creates' replies are lost: in the end what runs is what has a row."""

from __future__ import annotations

import asyncio

import pytest

from hatchway.errors import SpawnCode, TransientSpawnError
from hatchway.model import EndReason, ProvisionState
from tests.integration.reclaim.rig import Home
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import laptop

BURST = 100
LOST_ONCE = 5
"""Their next attempt finds what the first one made."""
LOST_FOR_GOOD = 5
"""Their workflows are terminated meanwhile, and their slots given back by hand."""


async def _never_answers() -> None:
    """Not even a cancel reaches who made it: nobody undoes the effect."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("the engine went away") from None


async def _rows(home: Home, number: int) -> bool:
    return len(await home.lab.slots.list()) == number


@pytest.mark.scenario("S03")
async def test_after_a_burst_with_lost_replies_what_runs_is_what_has_a_row(home: Home) -> None:
    await home.lab.apply(laptop(maxAgents=BURST, maxConcurrentSpawns=50))
    once, for_good = set[str](), set[str]()

    async def reply_is_lost(agent_id: str) -> None:
        if len(for_good) < LOST_FOR_GOOD:
            for_good.add(agent_id)
            await _never_answers()
        if len(once) < LOST_ONCE and agent_id not in once:
            once.add(agent_id)
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "the reply was lost")

    home.backend.before_create = gate = Gate()
    home.backend.after_create = reply_is_lost
    started = await asyncio.gather(*(home.lab.provision(job_id=f"job-{n}") for n in range(BURST)))
    await until(lambda: _rows(home, BURST), what="the burst has its slots")  # a scaler that fails takes nobody on
    gate.open()
    await until(lambda: len(home.cloud.live) == BURST, what="the burst is created")
    for lost in [one for one in started if one.agent_id in for_good]:
        await home.lab.handle(lost).terminate("by an operator")
        await home.lab.slots.release(lost.agent_id, EndReason.OPERATOR.value)
    for one in started:
        if one.agent_id not in for_good:
            await home.lab.reaches(one, ProvisionState.AWAITING_ADOPTION)

    first, second = await home.reclaim(), await home.reclaim()

    rows = {row.agent_id for row in await home.lab.slots.list()}
    assert {sighting.agent_id for sighting in first.sighted} == for_good
    assert set(second.reclaimed) == for_good
    assert rows == set(home.cloud.live) == {one.agent_id for one in started} - for_good
    assert all(home.cloud.created(one.agent_id) == 1 for one in started)
