"""A small load with a bit of everything on one fleet, for the bugs that must show in it; and the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hatchway.client import Started
from tests.support.chaos.campaign import ENDS_WITHIN_S, end_of
from tests.support.chaos.checker import Ended, Evidence, Violation, judge
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.fleet import Fleet, new_job
from tests.support.chaos.passes import QUIET_WITHIN_S, reclaim, settle, sweep
from tests.support.chaos.scalers import APART, CLOUD, METAL

SHORT_JOBS = 24
SHORT_S = 0.3
BUSY_FOR_S = 16.0
"""Twice the flap grace: an agent that was adopted so long ago, and that nobody has looked at since, looks dead."""
EVERY_S = 2.0


@dataclass(frozen=True)
class Patience:
    """Seconds, both of them."""

    ends: float
    """Until each provision has an end."""
    quiet: float
    """Then, until no slot is held."""


OF_A_BUG = Patience(60, 10)
"""Where something stays away for ever, or stays for ever."""
OF_NONE = Patience(ENDS_WITHIN_S, QUIET_WITHIN_S)
"""Where everything ends, on a busy machine late."""


async def bout(fleet: Fleet, patience: Patience) -> Evidence:
    """Short jobs on every scaler, more than there are slots; a long one; replies lost; a machine of somebody else."""
    await fleet.plant_foreign()
    await fleet.ask_cloud("behave", seed=1, lost=0.5)
    async with Witness(fleet) as witness:
        caring = [asyncio.create_task(_again_and_again(what, fleet)) for what in (sweep, reclaim)]
        ends = await asyncio.gather(_one(fleet, METAL, BUSY_FOR_S, patience), *(
            _one(fleet, (CLOUD, APART, METAL)[number % 3], SHORT_S, patience) for number in range(SHORT_JOBS)
        ))  # fmt: skip
        for task in caring:
            task.cancel()
        await fleet.ask_cloud("behave")
        await settle(fleet, patience.quiet)
        return await gather(fleet, witness, ends)


async def verdict(fleet: Fleet, patience: Patience) -> list[Violation]:
    return judge(await bout(fleet, patience))


async def _one(fleet: Fleet, scaler: str, seconds: float, patience: Patience) -> Ended:
    job_id = new_job(scaler, seconds)
    started: Started = await fleet.provision(job_id, scaler)
    return Ended(job_id, started.agent_id, await end_of(fleet, started, patience.ends))


async def _again_and_again(what: Callable[[Fleet], Awaitable[object]], fleet: Fleet) -> None:
    """What the schedules do, each by itself: slow reclaim passes keep no sweep away from an agent that is busy."""
    while True:
        await asyncio.sleep(EVERY_S)
        await what(fleet)
