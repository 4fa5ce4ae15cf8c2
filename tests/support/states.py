"""How to bring a provision to each of its states and hold it there: for what must hold at every state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hatchway.client import Started
from hatchway.model import ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import laptop

S = ProvisionState


async def queued(lab: Lab) -> Started:
    await lab.apply(laptop(maxAgents=0))
    await lab.apply(laptop(maxAgents=1))
    blocker = await lab.provision(job_id="blocker")
    await lab.reaches(blocker, S.AWAITING_ADOPTION)
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.QUEUED)
    return started


async def spawning(lab: Lab) -> Started:
    """Before the effect: nothing has been made yet."""
    lab.backend.before_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    return started


async def spawned_unacknowledged(lab: Lab) -> Started:
    """After the effect, before its reply."""
    lab.backend.after_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    return started


async def awaiting_adoption(lab: Lab) -> Started:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    return started


async def active(lab: Lab) -> Started:
    started = await awaiting_adoption(lab)
    await lab.adopt(started)
    await lab.reaches(started, S.ACTIVE)
    return started


async def tearing_down(lab: Lab) -> Started:
    lab.backend.before_destroy = gate = Gate()
    started = await awaiting_adoption(lab)
    await lab.exits(started)
    await gate.reached.wait()
    return started


AT: dict[str, Callable[[Lab], Awaitable[Started]]] = {
    "queued": queued,
    "spawning": spawning,
    "spawned-unacknowledged": spawned_unacknowledged,
    "awaiting-adoption": awaiting_adoption,
    "active": active,
    "tearing-down": tearing_down,
}


async def let_go(lab: Lab, started: Started) -> None:
    """Open every gate, and end whoever stood in the way."""
    for step in (lab.backend.before_create, lab.backend.after_create, lab.backend.before_destroy):
        if isinstance(step, Gate):
            step.open()
    if any(row.job_id == "blocker" for row in await lab.slots.list()):
        await lab.hatchway.cancel("provision/job/blocker")

    async def blocker_gone() -> bool:
        return all(row.job_id != "blocker" for row in await lab.slots.list())

    await until(blocker_gone)
