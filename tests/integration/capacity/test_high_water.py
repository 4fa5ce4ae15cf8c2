"""The number that an operator writes is the number that is there: under load, under changing caps, under kill -9.

Two append-only logs say what happened: of the slots, written inside the admitting transactions, and of the compute,
written beside each effect. The first may never stand above a cap in force, the second only where the first allows it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.store.pool import Database
from tests.integration.capacity.fleet import Caps, Fleet
from tests.integration.capacity.host import Effect, EffectLog, LoggedDisk
from tests.support.admissions import Admission, Judge, admissions, break_the_admission_lock, log_admissions
from tests.support.lab import Lab
from tests.support.namespaces import Namespaces, until
from tests.support.pooler import through
from tests.support.postgres_fixtures import set_isolation
from tests.support.scripted import ScriptedBackend

REQUESTS = 200
HOSTS = ("host-1", "host-2", "host-3", "host-4")
BETWEEN_APPLIES_S = 0.7
BETWEEN_KILLS_S = 4.0

WIDE = Caps(
    everything=(16, 24, 48),
    pools={"a": (10, 14, None), "b": (6, None, 20)},
    scalers={"small": ((8, None, None), "a"), "big": ((4, 12, 24), "a"), "spare": ((6, None, None), "b"),
             "loose": ((6, 10, None), None)},
)  # fmt: skip
NARROW = Caps(
    everything=(7, 12, 20),
    pools={"a": (4, 8, 16), "b": (2, 4, None)},
    scalers={"small": ((3, 4, None), "a"), "big": ((1, 8, None), "a"), "spare": ((1, 4, 8), "b"),
             "loose": ((2, None, 8), None)},
)  # fmt: skip
MOVED = Caps(
    everything=(12, None, None),
    pools={"a": (3, None, None), "b": (9, 16, 32)},
    scalers={"small": ((20, 6, 12), "b"), "big": ((3, None, None), "b"), "spare": ((20, None, None), "a"),
             "loose": ((4, None, None), "a")},
)  # fmt: skip
ONE_LESS = Caps(
    everything=(None, 16, 30),
    pools={"a": (5, 10, None), "b": (None, 12, None)},
    scalers={"small": ((4, None, None), None), "big": ((2, None, 16), "a"), "loose": ((5, 8, None), "b")},
)  # fmt: skip
PROGRAM = (WIDE, NARROW, MOVED, WIDE, ONE_LESS, NARROW)
SHAPES = [("500m", "256Mi"), (1, "1Gi"), (2, "1Gi"), (1, "4Gi"), (4, "4Gi"), (2, "8Gi")]


class Load:
    """Two hundred requests, the caps' program, and a hand that kills."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.lab = fleet, fleet.lab
        self.dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
        self.endings = Counter[str]()
        self._over = asyncio.Event()

    async def run(self, requests: int, *, arriving_within: float = 2) -> None:
        async with self.fleet.agents(seed=requests):
            await asyncio.gather(*(self._request(n, arriving_within) for n in range(requests)))
        self._over.set()

    async def disturbed(self, requests: int) -> None:
        """The same, while caps change and workers are killed."""
        async with asyncio.TaskGroup() as group:
            for part in (self.run(requests), self._change_caps(), self._kill()):
                group.create_task(part)

    async def _request(self, number: int, arriving_within: float) -> None:
        cpus, memory = self.dice.choice(SHAPES)
        request: dict[str, Any] = {
            "job_id": f"job-{number}",
            "labels": ["linux", *self.dice.choice([[], [], ["small"], ["big"], ["loose"]])],
            "resources": {"requests": {"cpus": cpus, "memory": memory}},
            "priority": self.dice.choice([1, 2, 3, 3, 3]),
            "on_capacity": "decline" if self.dice.random() < 0.1 else "wait",
        }
        cancelled_after = self.dice.uniform(0, 4) if self.dice.random() < 0.1 else None
        await asyncio.sleep(self.dice.uniform(0, arriving_within))
        started = await self.lab.provision(**request)
        self.fleet.started[started.agent_id] = started
        if cancelled_after is not None:
            await asyncio.sleep(cancelled_after)
            await self.lab.hatchway.cancel(started.workflow_id)
        self.endings[await self._ending(started)] += 1

    async def _ending(self, started: Started) -> str:
        try:
            return (await asyncio.wait_for(self.lab.hatchway.outcome(started), 200)).end_reason.value
        except ProvisionFailed as e:
            return e.detail or e.error_type.lower()

    async def _change_caps(self) -> None:
        for caps in itertools.cycle(PROGRAM):
            if await self._is_over_within(BETWEEN_APPLIES_S):
                return
            await self.fleet.apply(caps)

    async def _kill(self) -> None:
        while not await self._is_over_within(BETWEEN_KILLS_S):
            host = self.dice.choice(HOSTS)
            await self.fleet.kill(host)
            await self.fleet.start(host)

    async def _is_over_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()


async def free_again(lab: Lab, directory: Path) -> None:
    async def nothing_held() -> bool:
        return not await lab.slots.list() and not list((directory / "live").iterdir())

    await until(nothing_held, patience=120, what="everything free")
    used = await lab.db.fetch_all("select scope from scaler_capacity where (agents, mcpu, mem_bytes) <> (0, 0, 0)")
    assert used == []
    assert await lab.db.fetch_all("select agent_id from scaler_waiters") == []


def compute_without_a_slot(slots: Sequence[Admission], effects: Sequence[Effect]) -> list[str]:
    """A sentence for each compute that was there before its slot or after it. One clock: this machine's."""
    given = {entry.agent_id: entry.at.timestamp() for entry in slots if entry.admitted}
    taken = {entry.agent_id: entry.at.timestamp() for entry in slots if not entry.admitted}
    return [
        f"{effect.agent_id} was {effect.what} on {effect.host_id} while it held no slot"
        for effect in effects
        if not given.get(effect.agent_id, float("inf")) < effect.at < taken.get(effect.agent_id, float("inf"))
    ]


def most_alive(effects: Sequence[Effect]) -> int:
    """The high-water mark of the compute itself."""
    alive, most = set[str](), 0
    for effect in effects:
        (alive.discard if effect.what == "removed" else alive.add)(effect.agent_id)
        most = max(most, len(alive))
    return most


@pytest.mark.scenario("S09", "S45")
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("isolation", "pooled"),
    [
        pytest.param("read committed", False, id="straight"),
        pytest.param("read committed", True, id="through a transaction pooler", marks=pytest.mark.needs("pgbouncer")),
        pytest.param("repeatable read", True, id="pooler, repeatable read", marks=pytest.mark.needs("pgbouncer")),
        pytest.param("serializable", False, id="serializable"),
    ],
)
async def test_no_cap_is_ever_exceeded_while_caps_change_and_workers_are_killed(
    namespaces: Namespaces,
    database_url: str,
    tmp_path: Path,
    isolation: str,
    pooled: bool,
    request: pytest.FixtureRequest,
) -> None:
    set_isolation(database_url, isolation)
    way = through(request.getfixturevalue("pooler"), database_url) if pooled else database_url
    async with Database.open(way) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(LoggedDisk(tmp_path)))
        await log_admissions(db)
        fleet = Fleet(lab, way, tmp_path, list(WIDE.scalers))
        await fleet.apply(WIDE)
        load = Load(fleet, seed=20)
        try:
            await asyncio.gather(*(fleet.start(host) for host in HOSTS))

            await load.disturbed(REQUESTS)

            await free_again(lab, tmp_path)
        finally:
            await fleet.stop()
        slots, effects = await admissions(db), EffectLog(tmp_path).everything()
        judge = Judge(fleet.applied)
        assert judge.breaches(slots) == []
        assert compute_without_a_slot(slots, effects) == []
        assert most_alive(effects) <= judge.most(slots) <= 16
        assert fleet.kills >= 3
        assert len(fleet.applied) >= len(PROGRAM)
        assert load.endings.total() == REQUESTS
        assert set(load.endings) <= {"completed", "cancelled", "at-capacity", "never-fits"}
        assert load.endings["completed"] >= REQUESTS / 2


async def test_without_the_admission_lock_the_judge_sees_caps_exceeded(
    namespaces: Namespaces, database_url: str, tmp_path: Path
) -> None:
    """The test above can fail: the lock is what it proves."""
    async with Database.open(database_url) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(LoggedDisk(tmp_path)))
        await log_admissions(db)
        fleet = Fleet(lab, database_url, tmp_path, list(WIDE.scalers))
        await fleet.apply(NARROW)
        await break_the_admission_lock(db, lingering=0.2)
        try:
            await asyncio.gather(*(fleet.start(host) for host in HOSTS))

            await Load(fleet, seed=20).run(40, arriving_within=0)
        finally:
            await fleet.stop()
        assert Judge(fleet.applied).breaches(await admissions(db)) != []
