"""Cells of the matrix on one fleet, one after another; then quiet, sweeps, reclaim passes, and the verdict."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from hatchway.client import ProvisionFailed, Started
from tests.support.chaos.cells import Cell
from tests.support.chaos.checker import Ended, Violation, judge
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.faults import HOLD_S, Action, Component, Faults, MissedError, Target
from tests.support.chaos.fleet import Fleet, new_job, patiently
from tests.support.chaos.passes import settle
from tests.support.chaos.points import Point, Standing
from tests.support.chaos.scalers import APART, CLOUD, DOCKER, METAL
from tests.support.namespaces import until

REACHED_WITHIN_S = 30.0
ENDS_WITHIN_S = 150.0
"""A teardown whose worker was killed is noticed after 30 s, and its first round ends then, too."""
TRIES = 3
ENGINE_APART_S = 20.0
JOB_S = 1.0
LONG_JOB_S = 60.0


@dataclass
class Result:
    """What came of one cell. Green: the fault hit at its point, the provision ended as it may, no invariant broke."""

    cell: Cell
    started: Started | None = None
    hit: bool = False
    end: str | None = None
    trouble: list[str] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return self.hit and not self.trouble and self.end in self.cell.ends

    def __str__(self) -> str:
        where = f"its agent is {self.started.agent_id}" if self.started else "it was not started"
        what = "" if self.hit else "the fault did not hit at its point; "
        return f"{self.cell}: {what}ended as {self.end}, may end as {sorted(self.cell.ends)}; {where}; {self.trouble}"


class Campaign:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.faults = Faults(fleet)
        self.results: list[Result] = []
        self.violations: list[Violation] = []

    async def run(self, cells: list[Cell]) -> None:
        await self.fleet.plant_foreign()
        async with Witness(self.fleet) as witness:
            ending = []
            for cell in cells:
                result = await self._tried(cell)
                self.results.append(result)
                ending.append(asyncio.create_task(self._follow(result)))
                if cell.component is Component.ENGINE:
                    # Three attempts is what a spawn has: the faults of three cells must not take one each.
                    await asyncio.wait([ending[-1]], timeout=ENGINE_APART_S)
            await asyncio.gather(*ending)
            ends = [Ended(cell_job(r), r.started.agent_id, r.end) for r in self.results if r.started]
            await settle(self.fleet)
            self.violations = judge(await gather(self.fleet, witness, ends))
        for violation in self.violations:
            for result in self.results:
                if result.started and result.started.agent_id == violation.agent_id:
                    result.trouble.append(str(violation))

    async def _tried(self, cell: Cell) -> Result:
        """Until the fault hits: an agent that hears of its end is quick, and may be gone before anybody hurts it."""
        for _ in range(TRIES):
            result = await self._run(cell)
            if result.hit:
                break
        return result

    async def _run(self, cell: Cell) -> Result:
        """Bring one provision to the cell's point, hit there, let it go on, and heal."""
        fleet, result = self.fleet, Result(cell)
        cancels = cell.component is Component.AGENT and cell.point is Point.P7
        job_id = new_job(cell.point.value.lower(), LONG_JOB_S if cancels else JOB_S)
        fleet.barriers.arm(job_id, cell.point)
        result.started = await fleet.provision(job_id, self._scaler(cell))
        try:
            if cancels:
                await self._cancel_at_work(result.started)
            standing: Standing = await until(lambda: fleet.barriers.standing(job_id), REACHED_WITHIN_S)
            target = self._target(cell, standing)
            await self.faults.hit(target, cell.action)
            result.hit = fleet.barriers.standing(job_id) is not None
            fleet.barriers.open(job_id)
            if cell.action in (Action.PAUSE, Action.CUT):
                await asyncio.sleep(HOLD_S)
            await self.faults.heal(target, cell.action)
            await fleet.ready()
        except MissedError as e:
            fleet.barriers.open(job_id)
            result.trouble.append(str(e))
        except TimeoutError:
            fleet.barriers.open(job_id)
            result.trouble.append(f"nobody came to {cell.point.value} within {REACHED_WITHIN_S:g} s")
        return result

    async def _cancel_at_work(self, started: Started) -> None:
        """What sends a teardown to an agent that still runs."""

        async def works() -> bool:
            return any(e.what == "began" and e.agent_id == started.agent_id for e in self.fleet.journal.events())

        await until(works, REACHED_WITHIN_S, what="the job began")
        self.fleet.journal.append("excused", started.agent_id, "cancelled by the test")
        await patiently(lambda: self.fleet.hatchway.cancel(started.workflow_id))

    def _scaler(self, cell: Cell) -> str:
        if cell.component is Component.AGENT:
            return APART
        if cell.component is Component.ENGINE:
            return DOCKER if self.fleet.docker else CLOUD
        return (METAL, CLOUD)[len(self.results) % 2]

    def _target(self, cell: Cell, standing: Standing) -> Target:
        """The worker that stands there; the gateway that the agent is at; the agent itself."""
        match cell.component:
            case Component.WORKER:
                return Target(cell.component, standing.process)
            case Component.GATEWAY:
                return Target(cell.component, standing.detail or self.fleet.gateways[0])
            case Component.AGENT:
                return Target(cell.component, standing.agent_id)
            case _:
                return Target(cell.component)

    async def _follow(self, result: Result) -> None:
        assert result.started
        result.end = await end_of(self.fleet, result.started)


def cell_job(result: Result) -> str:
    return result.started.workflow_id.removeprefix("provision/job/") if result.started else ""


async def end_of(fleet: Fleet, started: Started, within: float = ENDS_WITHIN_S) -> str | None:
    """End reason or error type; None when it does not end in time. A server that is away is asked again."""
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return (await fleet.hatchway.outcome(started)).end_reason.value
                except ProvisionFailed as e:
                    return e.error_type
                except (RPCError, WorkflowFailureError, RuntimeError):
                    await asyncio.sleep(0.2)
    except TimeoutError:
        return None
