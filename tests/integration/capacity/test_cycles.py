"""A thousand provisions, each of which something happens to, at every point in turn: every slot comes back."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.store.waiters import Line
from hatchway.waking import wake_all
from tests.integration.store.factory import counters_are_right
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.stack import laptop

CYCLES = 1000
AT_ONCE = 60
CAP = 24
POINTS = (
    "nothing", "the spawn is refused", "the spawn fails once", "the spawn's reply is lost", "it is given up on",
    "it exits before it registers", "it exits at work", "it is cancelled", "it is cancelled at work", "it is released",
    "it is condemned", "the teardown fails once", "the teardown's reply is lost", "it completes twice",
)  # fmt: skip


def point(agent_id: str) -> str:
    """What happens to this agent: as random as its id, and known to everybody who knows that."""
    return POINTS[int(agent_id[-6:], 16) % len(POINTS)]


class Cycles:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.met: Counter[str] = Counter()
        self.endings: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._failed: set[tuple[str, str]] = set()
        self._there: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        backend = lab.backend
        backend.before_create, backend.after_create = self._before_create, self._after_create
        backend.before_destroy, backend.after_destroy = self._before_destroy, self._after_destroy

    def _once(self, agent_id: str, what: str) -> bool:
        """True at the first call for an agent that this happens to."""
        first = point(agent_id) == what and (agent_id, what) not in self._failed
        self._failed.add((agent_id, what))
        return first

    async def _before_create(self, agent_id: str) -> None:
        if point(agent_id) == "the spawn is refused":
            raise PermanentSpawnError(SpawnCode.QUOTA, "there are no more of these")
        if self._once(agent_id, "the spawn fails once"):
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "not now")

    async def _after_create(self, agent_id: str) -> None:
        self._there[agent_id].set()
        if self._once(agent_id, "the spawn's reply is lost"):
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "the reply was lost")

    async def _before_destroy(self, agent_id: str) -> None:
        if self._once(agent_id, "the teardown fails once"):
            raise DestroyError("the engine answered 500")

    async def _after_destroy(self, agent_id: str) -> None:
        if self._once(agent_id, "the teardown's reply is lost"):
            raise DestroyError("the reply was lost")

    async def run(self) -> None:
        numbers = iter(range(CYCLES))

        async def one_after_the_other() -> None:
            for number in numbers:
                await self._cycle(number)

        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(self._sweep())
            await asyncio.gather(*(group.create_task(one_after_the_other()) for _ in range(AT_ONCE)))
            sweeping.cancel()

    async def _sweep(self) -> None:
        """Room that opens by time, as a backoff's end, is handed over by whoever looks. Backoffs end early here."""
        line = Line(self.lab.db)
        while True:
            await asyncio.sleep(0.1)
            if await self.lab.db.fetch_all("delete from scaler_failures where backoff_until > now() returning 1"):
                await wake_all(self.lab.temporal, self.lab.slots, line, await line.pump())

    async def _cycle(self, number: int) -> None:
        started = await self.lab.provision(job_id=f"job-{number}", adoption_timeout=60)
        what = point(started.agent_id)
        agent = asyncio.create_task(self._agent(started, what))
        try:
            ended = (await asyncio.wait_for(self.lab.hatchway.outcome(started), 250)).end_reason.value
        except ProvisionFailed as e:
            ended = e.error_type
        agent.cancel()
        with suppress(asyncio.CancelledError):
            await agent
        self.endings[what][ended] += 1

    async def _agent(self, started: Started, what: str) -> None:
        if what == "it is cancelled":
            await asyncio.sleep(int(started.agent_id[-2:], 16) / 100)
            await self.lab.hatchway.cancel(started.workflow_id)
            return
        await self._there[started.agent_id].wait()
        with suppress(RPCError, WorkflowUpdateFailedError):  # it may have ended meanwhile
            await self._works(started, what)

    async def _works(self, started: Started, what: str) -> None:
        lab = self.lab
        match what:
            case "it is given up on":
                await lab.condemn(started)
            case "it exits before it registers":
                await lab.exits(started)
            case _:
                await lab.adopt(started)
        match what:
            case "it exits at work":
                await lab.exits(started)
            case "it is cancelled at work":
                await lab.hatchway.cancel(started.workflow_id)
            case "it is released":
                await lab.release(started, now=True)
            case "it is condemned":
                await lab.condemn(started)
            case "it completes twice":
                await lab.complete(started)
                await lab.complete(started)
            case "it is given up on" | "it exits before it registers":
                pass
            case _:
                await lab.complete(started)


@pytest.mark.scenario("S13")
@pytest.mark.timeout(600)
async def test_after_a_thousand_provisions_with_a_failure_at_every_point_the_free_slots_are_the_cap(
    namespaces: Namespaces, database_url: str
) -> None:
    async with running_lab(namespaces, database_url, laptop(maxAgents=CAP, stopGraceSeconds=0)) as lab:
        cycles = Cycles(lab)

        await cycles.run()

        await lab.nothing_left()
        assert lab.cloud.most <= CAP
        assert await counters_are_right(lab.db)
        assert set(cycles.endings) == set(POINTS)  # each happened
        assert sum(endings.total() for endings in cycles.endings.values()) == CYCLES
        free = await lab.db.fetch_one("select max_agents - agents from scaler_capacity where scope = 'scaler:laptop'")
        assert free == (CAP,)
