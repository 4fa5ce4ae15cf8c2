"""The sweeps and the reclaim passes that the schedules would start, started by the test; and the wait for quiet."""

from __future__ import annotations

import asyncio
import uuid

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from hatchway.model import SweepRequest
from hatchway.schedules import make_reclaim_schedule, reclaim_of
from hatchway.task_queues import CONTROL
from tests.support.chaos.cloud_backend import HOST
from tests.support.chaos.fleet import Fleet, patiently
from tests.support.namespaces import until

QUIET_WITHIN_S = 90.0
SWEEP_EVERY_S = 3.0
PASS_WITHIN_S = 60.0


async def sweep(fleet: Fleet) -> bool:
    """One pass. False: a step has failed, which the next pass is for."""
    try:
        await fleet.client.execute_workflow(
            "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL
        )
    except (WorkflowFailureError, RPCError):
        return False
    return True


async def reclaim(fleet: Fleet) -> None:
    """One pass over each host, by its schedule: a pass reads what the one before it has sighted."""
    for host in (HOST, fleet.metal_host):
        await make_reclaim_schedule(fleet.client, host)
        schedule = fleet.client.get_schedule_handle(reclaim_of(host).id)
        before = (await schedule.describe()).info.num_actions
        await schedule.trigger()

        async def done(schedule: object = schedule, before: int = before) -> bool:
            info = (await fleet.client.get_schedule_handle(schedule.id).describe()).info  # type: ignore[attr-defined]
            return info.num_actions > before and not info.running_actions

        await until(done, PASS_WITHIN_S, what=f"a reclaim pass over {host}")


async def settle(fleet: Fleet, quiet_within: float = QUIET_WITHIN_S) -> None:
    """Sweeps until no slot is held, then one more, and two reclaim passes. What stays is the judge's to see."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + quiet_within
    while loop.time() < ends_at:
        await patiently(lambda: sweep(fleet))
        if not await patiently(lambda: fleet.db.fetch_all("select agent_id from scaler_spawning_agents limit 1")):
            break
        await asyncio.sleep(SWEEP_EVERY_S)
    await sweep(fleet)
    for _ in range(2):
        await patiently(lambda: reclaim(fleet), PASS_WITHIN_S)
