"""What may happen to one warm agent in the same moment: the row decides, and nobody is left with half of it."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.model import ProvisionState
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.reservations import Candidate, Held, PoolRefused, Reservation, Warm
from hatchway.store.slots import Slots
from hatchway.store.warm import WarmAgents
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.pools import SHAPE, filled, pooled, started_of

S = ProvisionState
KEY = "as-it-is-made-now"
MINUTE = timedelta(minutes=1)


def _reservation(agent_id: str, *, job_id: str | None = None, target: int | None = None) -> Reservation:
    candidate = Candidate(
        scaler="laptop", mcpu=1000, mem_bytes=2**30, label_set=["linux"], mandatory_labels=[],
        backend_type="bare-metal", provisioning_targets=[], roles=[],
        takes_warm=KEY if job_id else None, made_warm=None if job_id else KEY,
    )  # fmt: skip
    return Reservation(
        agent_id=agent_id, workflow_id=f"provision/{agent_id}", workflow_first_run_id=agent_id, job_id=job_id,
        run_id=None, priority=3, wait=job_id is not None, candidates=[candidate], config_version=1,
        owner_instance_id="test", reserved_for=MINUTE, wait_timeout=MINUTE, warm_target=target,
    )  # fmt: skip


async def _ready(lab: Lab, agent_id: str, target: int = 1) -> None:
    assert isinstance(await Slots(lab.db).reserve(_reservation(agent_id, target=target)), Held)
    assert isinstance(await Adoption(lab.db).adopt(agent_id, "gateway-1", "r-1"), Adopted)


async def test_an_idle_agent_is_taken_or_released_and_never_both(lab: Lab) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    seen = set()
    for n in range(200):
        agent, job = f"warm-{n}", f"job-{n}"
        await _ready(lab, agent)

        async def take(name: str, job_id: str) -> bool:
            await asyncio.sleep(random.uniform(0, 0.003))  # noqa: S311 - which of the two is first
            return isinstance(await slots.reserve(_reservation(name, job_id=job_id)), Warm)

        async def let_go(name: str) -> bool:
            await asyncio.sleep(random.uniform(0, 0.003))  # noqa: S311
            return bool(await warm.retire([name]))

        took, released = await asyncio.gather(take(f"taker-{n}", job), let_go(agent))

        row = await slots.get(agent)
        assert row is not None
        assert took != released
        assert (row.bound_job_id == job, row.drain_requested) == (took, released)
        seen.add(took)
        for gone in (agent, f"taker-{n}"):
            await slots.release(gone, "released")
    assert seen == {True, False}, "the race was never one"


async def test_one_agent_is_taken_by_one_of_many_jobs(lab: Lab) -> None:
    slots = Slots(lab.db)
    for n in range(20):
        await _ready(lab, f"warm-{n}")

        answers = await asyncio.gather(
            *(slots.reserve(_reservation(f"taker-{n}-{i}", job_id=f"job-{n}-{i}")) for i in range(3))
        )

        assert sum(isinstance(answer, Warm) for answer in answers) == 1
        for gone in (f"warm-{n}", *(f"taker-{n}-{i}" for i in range(3))):
            await slots.release(gone, "released")


async def test_a_reserve_that_is_repeated_names_the_same_agent(lab: Lab) -> None:
    """The reply was lost, or the workflow was reset."""
    await _ready(lab, "warm-1", target=2)
    await _ready(lab, "warm-2", target=2)
    asked = _reservation("taker", job_id="job-1")

    answers = [await Slots(lab.db).reserve(asked) for _ in range(3)]

    assert [a.row.agent_id for a in answers if isinstance(a, Warm)] == ["warm-1"] * 3


async def test_an_agent_that_closes_before_it_is_bound_is_forgotten(lab: Lab) -> None:
    await _ready(lab, "warm-1", target=2)
    asked = _reservation("taker", job_id="job-1")
    assert isinstance(await Slots(lab.db).reserve(asked), Warm)

    await Adoption(lab.db).close("warm-1", "compute-exited", only_unadopted=False)

    assert isinstance(await Slots(lab.db).reserve(asked), Held)


async def test_a_bind_and_a_give_back_have_one_winner(lab: Lab) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    for n in range(50):
        await _ready(lab, f"warm-{n}")
        assert isinstance(await slots.reserve(_reservation(f"taker-{n}", job_id=f"job-{n}")), Warm)

        bound, given_back = await asyncio.gather(warm.bind(f"warm-{n}", f"job-{n}"), warm.give_back(f"taker-{n}"))

        assert (bound is not None) == (given_back.bound is not None)
        for gone in (f"warm-{n}", f"taker-{n}"):
            await slots.release(gone, "released")


async def test_fills_that_reserve_at_once_end_at_the_target(lab: Lab) -> None:
    answers = await asyncio.gather(*(Slots(lab.db).reserve(_reservation(f"warm-{n}", target=2)) for n in range(10)))

    assert sum(isinstance(a, Held) for a in answers) == 2
    assert sum(isinstance(a, PoolRefused) for a in answers) == 8


@pytest.mark.timeout(420)
async def test_jobs_and_pool_together_stay_within_the_cap(lab: Lab) -> None:
    """Forty jobs, some of which fit a warm agent and some not, through a pool of two under a cap of four. Never more
    than five at once, so that now somebody waits, and now the pool is filled.
    """
    await lab.apply(pooled(size=2, maxAgents=4))
    await filled(lab, 2)
    served: list[str] = []
    over = asyncio.Event()
    warm: set[str] = set()
    at_once = asyncio.Semaphore(5)

    async def job(n: int) -> None:
        shape = SHAPE if n % 3 else {"cpus": 0.5, "memory": "2Gi"}
        async with at_once:
            started = await lab.provision(job_id=f"job-{n}", resources=shape)
            spec = await lab.hatchway.wait_adopted(started)
            served.append(spec.agent_id)
            if spec.agent_id != started.agent_id:
                warm.add(spec.agent_id)
            await lab.complete(await _started(lab, spec.agent_id))
            await lab.outcome(started)

    async def agents() -> None:
        """Every agent that is made registers. Ends by the event: a cancelled update raises like one that is refused."""
        while not over.is_set():
            for row in await lab.slots.list():
                if row.compute and not row.adopted and not row.closing:
                    try:
                        await lab.adopt(started_of(row))
                    except Exception as e:  # its provision has ended meanwhile, which the test does not judge by
                        assert not isinstance(e, AssertionError)  # noqa: PT017
            await asyncio.sleep(0.05)

    async def sweeps() -> None:
        while True:
            await lab.sweep()
            await asyncio.sleep(0.3)

    background = [asyncio.create_task(agents()), asyncio.create_task(sweeps())]
    try:
        await asyncio.wait_for(asyncio.gather(*(job(n) for n in range(40))), 240)
    finally:
        over.set()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)

    assert len(served) == len(set(served)) == 40, "one agent serves one job"
    assert 0 < len(warm) < 40
    assert lab.cloud.most <= 4
    await lab.apply(pooled(size=0, maxAgents=4))

    async def drained() -> bool:
        await lab.sweep()
        return not await lab.slots.list()

    await until(drained)
    await lab.nothing_left()


async def _started(lab: Lab, agent_id: str) -> Started:
    row = await lab.slots.get(agent_id)
    if row is None:
        raise ProvisionFailed(f"{agent_id} is gone", "Gone")
    return started_of(row)
