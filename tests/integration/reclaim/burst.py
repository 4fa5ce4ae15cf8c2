"""A burst in which a tenth of the creates' replies are lost: in the end what runs is what has a row."""

from __future__ import annotations

import asyncio

from hatchway.client import Started
from hatchway.errors import SpawnCode, TransientSpawnError
from hatchway.model import EndReason, ProvisionState
from tests.integration.reclaim.rig import Home
from tests.support.namespaces import PATIENCE, until
from tests.support.scripted import Gate
from tests.support.stack import laptop

AT_ONCE = 100
"""Starts under way side by side: more would only wait inside the server for longer than a call may take."""
LONG_S = 3600
"""No stage's limit comes in between: a burst of a thousand is minutes under way."""


async def _never_answers() -> None:
    """Not even a cancel reaches who made it: nobody undoes the effect."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("the engine went away") from None


async def _rows(home: Home, number: int) -> bool:
    return len(await home.lab.slots.list()) == number


async def _all_started(home: Home, size: int) -> list[Started]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Started:
        async with turn:
            return await home.lab.provision(job_id=f"job-{number}", spawn_timeout=LONG_S, adoption_timeout=LONG_S)

    return list(await asyncio.gather(*(one(number) for number in range(size))))


async def burst(home: Home, size: int) -> None:
    """Of the lost replies one half is lost once: the next attempt finds what the first one made. The other half is lost
    for good: their workflows are terminated meanwhile, and their slots given back by hand.
    """
    patience = PATIENCE * max(1.0, size / 100)
    lost_once = lost_for_good = size // 20
    await home.lab.apply(laptop(maxAgents=size, maxConcurrentSpawns=50))
    once, for_good = set[str](), set[str]()

    async def reply_is_lost(agent_id: str) -> None:
        if len(for_good) < lost_for_good:
            for_good.add(agent_id)
            await _never_answers()
        if len(once) < lost_once and agent_id not in once:
            once.add(agent_id)
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "the reply was lost")

    home.backend.before_create = gate = Gate()
    home.backend.after_create = reply_is_lost
    started = await _all_started(home, size)
    # All of them first: a scaler that fails takes nobody on.
    await until(lambda: _rows(home, size), patience, what="the burst has its slots")
    gate.open()
    await until(lambda: len(home.cloud.live) == size, patience, what="the burst is created")
    for lost in [one for one in started if one.agent_id in for_good]:
        await home.lab.handle(lost).terminate("by an operator")
        await home.lab.slots.release(lost.agent_id, EndReason.OPERATOR.value)
    for one in started:
        if one.agent_id not in for_good:
            await home.lab.reaches(one, ProvisionState.AWAITING_ADOPTION)

    first, second = await home.reclaim(), await home.reclaim()

    rows = {row.agent_id for row in await home.lab.slots.list()}
    assert len(once) == len(for_good) == size // 20
    assert {sighting.agent_id for sighting in first.sighted} == for_good
    assert set(second.reclaimed) == for_good
    assert rows == set(home.cloud.live) == {one.agent_id for one in started} - for_good
    assert all(home.cloud.created(one.agent_id) == 1 for one in started)
