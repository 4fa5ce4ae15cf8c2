"""A small load with a bit of everything on one fleet, for the bugs that must show in it; and the verdict."""

from __future__ import annotations

import asyncio

from hatchway.client import Started
from tests.support.chaos.campaign import end_of
from tests.support.chaos.checker import Ended, Evidence, Violation, judge
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.fleet import Fleet, new_job
from tests.support.chaos.passes import reclaim, settle, sweep
from tests.support.chaos.scalers import APART, CLOUD, METAL

SHORT_JOBS = 24
SHORT_S = 0.3
BUSY_FOR_S = 16.0
"""Twice the flap grace: an agent that was adopted so long ago, and that nobody has looked at since, looks dead."""
SWEEP_EVERY_S = 2.0
ENDS_WITHIN_S = 60.0
QUIET_WITHIN_S = 10.0


async def bout(fleet: Fleet) -> Evidence:
    """Short jobs on every scaler, more than there are slots; a long one; replies lost; a machine of somebody else."""
    await fleet.plant_foreign()
    await fleet.ask_cloud("behave", seed=1, lost=0.5)
    async with Witness(fleet) as witness:
        caring = asyncio.create_task(_care(fleet))
        ends = await asyncio.gather(_one(fleet, METAL, BUSY_FOR_S), *(
            _one(fleet, (CLOUD, APART, METAL)[number % 3], SHORT_S) for number in range(SHORT_JOBS)
        ))  # fmt: skip
        caring.cancel()
        await fleet.ask_cloud("behave")
        await settle(fleet, QUIET_WITHIN_S)
        return await gather(fleet, witness, ends)


async def verdict(fleet: Fleet) -> list[Violation]:
    return judge(await bout(fleet))


async def _one(fleet: Fleet, scaler: str, seconds: float) -> Ended:
    job_id = new_job(scaler, seconds)
    started: Started = await fleet.provision(job_id, scaler)
    return Ended(job_id, started.agent_id, await end_of(fleet, started, ENDS_WITHIN_S))


async def _care(fleet: Fleet) -> None:
    """What the schedules do."""
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        await sweep(fleet)
        await reclaim(fleet)
