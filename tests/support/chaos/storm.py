"""Random chaos: provisions without end, something happening to each, and faults of the fleet in between.

Every decision comes from the seed and a number: what happens to provision N, and which fault follows when N provisions
have been started. Wall time decides nothing but when it is over, so a seed gives the same storm again.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

import httpx
from temporalio.service import RPCError

from hatchway.client import Started
from hatchway.errors import HatchwayError
from hatchway.model import EndReason
from tests.support.chaos import processes
from tests.support.chaos.campaign import end_of
from tests.support.chaos.checker import Ended, Kind, Violation, judge
from tests.support.chaos.evidence import Witness, gather
from tests.support.chaos.faults import HOLD_S, Action, Component, Faults, Target
from tests.support.chaos.firewall import LOSE_S, Firewall
from tests.support.chaos.fleet import Fleet, new_job, patiently
from tests.support.chaos.passes import reclaim, settle, sweep
from tests.support.chaos.resets import reset
from tests.support.chaos.scalers import APART, CLOUD, METAL
from tests.support.namespaces import until

AT_ONCE = 14
"""More than the nine slots, so that there is always a line."""
FAULT_EVERY = (4, 9)
"""Provisions between two faults of the fleet."""
SWEEP_EVERY_S = 5.0
SWEEPS_A_RECLAIM = 3
ENDS_WITHIN_S = 240.0
BOOTED_WITHIN_S = 60.0
ENOUGH_FATES = 5
"""Of which chance alone does not take all."""
LEAST_LANDED = 0.2
"""As a share. A job works for three seconds at most and a fate comes within three: about half of them come in time."""
MISCHIEF = {"lost": 0.05, "late": 0.03, "slow": 0.05, "partial": 0.2, "stale": 0.2}


class Fate(StrEnum):
    """What happens to one provision."""

    NOTHING = "nothing"
    CANCEL = "cancelled"
    RELEASE = "released now"
    KILL_AGENT = "agent killed"
    PAUSE_AGENT = "agent paused"
    TERMINATE = "workflow terminated"
    DELETE = "machine deleted"
    OFFER_AGAIN = "offered twice"
    RESET = "workflow reset"


FATES = {
    Fate.NOTHING: 46, Fate.CANCEL: 8, Fate.RELEASE: 5, Fate.KILL_AGENT: 8, Fate.PAUSE_AGENT: 6, Fate.TERMINATE: 5,
    Fate.DELETE: 6, Fate.OFFER_AGAIN: 8, Fate.RESET: 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to provision N."""

    scaler: str
    works_for: float
    fate: Fate
    after: float
    """Seconds from its start until its fate comes."""
    back: float
    """Of a reset: to which of the workflow tasks, as a share of them."""

    @classmethod
    def of(cls, seed: int, number: int) -> Plan:
        dice = random.Random(f"{seed} provision {number}")  # noqa: S311 - repeatable, no secret
        fate = dice.choices(list(FATES), list(FATES.values()))[0]
        scaler = dice.choices([METAL, CLOUD, APART], [3, 6, 3])[0]
        return cls(scaler, round(dice.uniform(0.1, 3.0), 1), fate, round(dice.uniform(0, 3), 1),
                   round(dice.random(), 3))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault, and how many provisions are started before the next one."""

    component: Component
    action: Action
    which: int
    provisions: int

    @classmethod
    def of(cls, seed: int, number: int, *, cuts_only: bool = False) -> Strike:
        dice = random.Random(f"{seed} fault {number}")  # noqa: S311 - repeatable, no secret
        spared = Component.ENGINE if cuts_only else Component.AGENT
        component = dice.choice([one for one in Component if one is not spared])
        action = dice.choice([Action.CUT] if cuts_only else list(Action))
        return cls(component, action, dice.randrange(100), dice.randint(*FAULT_EVERY))


@dataclass
class Figures:
    """What is told at the end."""

    seed: int
    minutes: float
    provisions: int
    jobs_done: int
    ends: Counter[str]
    faults: Counter[str]
    fates: Counter[str]
    found: Counter[Kind]
    landed: Counter[str]
    """Of the fates: what has in fact been done to a provision, which may have ended before, or a server been away."""

    def missed(self) -> list[str]:
        """Fates that came to too few of the provisions that they were meant for to prove anything."""
        return [
            f"{fate.value}: {self.landed[fate.value]} of {meant}"
            for fate in Fate
            if (meant := self.fates[fate.value]) >= ENOUGH_FATES and self.landed[fate.value] < LEAST_LANDED * meant
        ]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.minutes:.1f} minutes, {self.provisions} provisions, {self.jobs_done} served"]
        lines += [f"  {kind.value}: {self.found[kind]}" for kind in Kind]
        for name, counted in (
            ("faults", self.faults),
            ("what was meant for provisions", self.fates),
            ("what happened to them", self.landed),
            ("ends", self.ends),
        ):
            lines.append(f"  {name}: " + ", ".join(f"{what} {number}" for what, number in sorted(counted.items())))
        return "\n".join(lines)


@dataclass
class Storm:
    fleet: Fleet
    seed: int
    firewall: Firewall | None = None
    """With one, every fault is a link whose packets are lost."""
    started: int = 0
    ends: list[Ended] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)
    _over: bool = False

    async def run(self, minutes: float) -> Figures:
        began = time.monotonic()
        await self.fleet.plant_foreign()
        await self.fleet.ask_cloud("behave", seed=self.seed, **MISCHIEF)
        async with Witness(self.fleet) as witness:
            ends_at = began + minutes * 60
            async with asyncio.TaskGroup() as group:  # a part that fails ends the storm at once
                caring = group.create_task(self._care())
                striking = group.create_task(self._strike())
                dispatching = [group.create_task(self._dispatch(ends_at)) for _ in range(AT_ONCE)]
                await asyncio.wait(dispatching)
                async with self._more:
                    self._over = True
                    self._more.notify_all()
                await asyncio.wait([striking])
                caring.cancel()
            await patiently(lambda: self.fleet.ask_cloud("behave"))
            await settle(self.fleet)
            self.violations = judge(await gather(self.fleet, witness, self.ends))
        ends = Counter(ended.end or "none" for ended in self.ends)
        return Figures(
            self.seed, (time.monotonic() - began) / 60, self.started, ends[EndReason.COMPLETED.value], ends,
            self.faults, self.fates, Counter(violation.kind for violation in self.violations), self.landed,
        )  # fmt: skip

    # ── provisions ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _dispatch(self, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            number = self.started
            async with self._more:
                self.started += 1
                self._more.notify_all()
            await self._one(number, Plan.of(self.seed, number))

    async def _one(self, number: int, plan: Plan) -> None:
        job_id = new_job(f"n{number}", plan.works_for)
        started = await self.fleet.provision(job_id, plan.scaler)
        happening = asyncio.create_task(self._befall(started, job_id, plan))
        await self._follow(started, job_id)
        happening.cancel()
        await asyncio.wait([happening])
        if not happening.cancelled():
            happening.result()

    async def _follow(self, started: Started, job_id: str) -> None:
        self.ends.append(Ended(job_id, started.agent_id, await end_of(self.fleet, started, ENDS_WITHIN_S)))

    async def _befall(self, started: Started, job_id: str, plan: Plan) -> None:
        await asyncio.sleep(plan.after)
        self.fates[plan.fate.value] += 1
        journal, agent_id = self.fleet.journal, started.agent_id
        with suppress(
            RPCError, HatchwayError, TimeoutError, httpx.HTTPError
        ):  # it may have ended by now, or a server may be away
            match plan.fate:
                case Fate.CANCEL:
                    journal.append("excused", agent_id, "cancelled")
                    await self.fleet.hatchway.cancel(started.workflow_id)
                case Fate.RELEASE:
                    journal.append("excused", agent_id, "released now")
                    await self.fleet.hatchway.release(started.workflow_id, agent_id, by="chaos", now=True)
                case Fate.KILL_AGENT:
                    await self._booted(agent_id)
                    journal.append("excused", agent_id, "killed")
                    processes.signal_agent(agent_id, signal.SIGKILL)
                case Fate.PAUSE_AGENT:
                    await self._booted(agent_id)
                    processes.signal_agent(agent_id, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(HOLD_S)
                    finally:
                        processes.signal_agent(agent_id, signal.SIGCONT)
                case Fate.TERMINATE:
                    journal.append("orphaned", agent_id, "terminated")
                    handle = self.fleet.client.get_workflow_handle(started.workflow_id, run_id=started.run_id)
                    await handle.terminate("by chaos")
                case Fate.DELETE:
                    await self._booted(agent_id)
                    journal.append("excused", agent_id, "its machine was deleted")
                    await self.fleet.ask_cloud("destroy", agent_id=agent_id)
                    processes.signal_agent(agent_id, signal.SIGKILL)  # on bare metal: all that runs there
                case Fate.OFFER_AGAIN:
                    again = await self.fleet.provision(job_id, plan.scaler)
                    assert again.agent_id == started.agent_id or again.joined or self._ended(started)
                case Fate.RESET:
                    if not await reset(self.fleet.client, started, plan.back):
                        self.fates[f"{plan.fate.value}, too late"] += 1
                        return
                case Fate.NOTHING:
                    pass
            self.landed[plan.fate.value] += 1

    async def _booted(self, agent_id: str) -> None:
        await until(lambda: processes.of_agent(agent_id), BOOTED_WITHIN_S, what=f"{agent_id} boots")

    def _ended(self, started: Started) -> bool:
        return any(ended.agent_id == started.agent_id for ended in self.ends)

    # ── the fleet ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _strike(self) -> None:
        faults, due = Faults(self.fleet, self.firewall), 0
        hold_s = HOLD_S if self.firewall is None else LOSE_S
        for number in range(1_000_000):
            strike = Strike.of(self.seed, number, cuts_only=self.firewall is not None)
            due += strike.provisions
            async with self._more:
                await self._more.wait_for(lambda due=due: self._over or self.started >= due)  # type: ignore[misc]
            if self._over:
                return
            target = self._target(strike)
            self.faults[f"{strike.component.value} {strike.action.value}"] += 1
            await faults.hit(target, strike.action)
            if strike.action in (Action.PAUSE, Action.CUT):
                await asyncio.sleep(hold_s)
            await faults.heal(target, strike.action)
            await self.fleet.ready()

    def _target(self, strike: Strike) -> Target:
        names = {Component.WORKER: self.fleet.workers, Component.GATEWAY: self.fleet.gateways}.get(strike.component)
        return Target(strike.component, names[strike.which % len(names)] if names else "")

    async def _care(self) -> None:
        """What the schedules do, more often."""
        passes = 0
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            passes += 1
            with suppress(RPCError, TimeoutError, HatchwayError, RuntimeError):  # a server may be away: next time
                await sweep(self.fleet)
                if passes % SWEEPS_A_RECLAIM == 0:
                    await reclaim(self.fleet)
