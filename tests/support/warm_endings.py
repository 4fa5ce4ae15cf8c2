"""The ends that warm pools add: of warm agents, and of the provisions whose jobs they serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.pools import filled, pooled, taken, warm_rows

S = ProvisionState


async def _over(lab: Lab, started: Started) -> Started:
    """Wait for the end, whatever it is."""
    try:
        await lab.outcome(started)
    except ProvisionFailed as e:
        lab.ended_with = e
    return started


async def _pair(lab: Lab) -> tuple[Started, Started]:
    """A warm agent, and the provision of the job that it has."""
    await lab.apply(pooled(size=1))
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))  # or its place would be filled
    return warm, await taken(lab, "job-1")


async def served_by_a_warm_agent(lab: Lab) -> Started:
    warm, job = await _pair(lab)
    await lab.complete(warm)
    return await _over(lab, job)


async def bound(lab: Lab) -> Started:
    """The warm agent's own end, with its job."""
    warm, job = await _pair(lab)
    await lab.complete(warm)
    await _over(lab, job)
    return await _over(lab, warm)


async def idle(lab: Lab) -> Started:
    await lab.apply(pooled(size=1))
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    await lab.sweep()
    return await _over(lab, warm)


async def pool_is_full(lab: Lab) -> Started:
    await lab.apply(pooled(size=1))
    (warm,) = await filled(lab)
    refused = await lab.provision(warm_for="laptop", on_capacity="decline")
    await _over(lab, refused)
    await lab.release(warm)
    await _over(lab, warm)
    return refused


async def lost_while_followed(lab: Lab) -> Started:
    warm, job = await _pair(lab)
    await lab.exits(warm, code=137)
    return await _over(lab, job)


async def cancelled_while_followed(lab: Lab) -> Started:
    warm, job = await _pair(lab)
    await lab.hatchway.cancel(job.workflow_id)
    await _over(lab, job)
    await _over(lab, warm)
    return job


async def drained_while_followed(lab: Lab) -> Started:
    """A release that is meant for the job's provision reaches the agent that has the job."""
    warm, job = await _pair(lab)
    await lab.release(job, EndReason.DRAINED)

    async def asked() -> bool:
        row = await lab.slots.get(warm.agent_id)
        return row is not None and row.drain_requested

    await until(asked)
    await lab.complete(warm)
    return await _over(lab, job)


async def cold_as_the_warm_one_is_gone(lab: Lab) -> Started:
    """Its workflow was terminated while it stood ready: the job lets go of it, and gets an agent of its own."""
    await lab.apply(pooled(size=1))
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    await lab.handle(warm).terminate()
    job = await lab.provision(job_id="job-1")
    await lab.reaches(job, S.AWAITING_ADOPTION)
    await lab.adopt(job)
    await lab.complete(job)
    await _over(lab, job)

    async def torn_down() -> bool:
        return not await warm_rows(lab) and await lab.slots.get(warm.agent_id) is None

    await until(torn_down)
    return job


async def looked_after(lab: Lab) -> Started:
    """The pool's own short workflow, at the word of whoever took an agent."""
    await lab.apply(pooled(size=1))
    (warm,) = await filled(lab)
    job = await taken(lab, "job-1")
    handle = lab.temporal.get_workflow_handle("warm/laptop")
    await handle.result()
    found = await handle.describe()
    await lab.complete(warm)
    await _over(lab, job)
    return Started(found.id, found.run_id, "")


WARM_ENDS: dict[str, tuple[Callable[[Lab], Awaitable[Started]], ErrorType | None]] = {
    "completed-by-warm-agent": (served_by_a_warm_agent, None),
    "completed-cold-as-bind-was-refused": (cold_as_the_warm_one_is_gone, None),
    "completed-drained-while-followed": (drained_while_followed, None),
    "agent-lost-while-followed": (lost_while_followed, ErrorType.AGENT_LOST),
    "cancelled-while-followed": (cancelled_while_followed, None),
    "warm-bound": (bound, None),
    "warm-idle": (idle, None),
    "warm-pool": (looked_after, None),
    "warm-declined-pool-full": (pool_is_full, ErrorType.DECLINED),
}
