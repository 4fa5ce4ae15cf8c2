"""Random walks through the line: after every step the store stands where the naive model stands."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from hatchway.store.backoff import Backoff
from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from tests.integration.store.factory import candidate, counters_are_right, reservation
from tests.integration.store.line_model import GLOBAL, Caps, LineModel, Shape
from tests.support.admissions import Judge, admissions, log_admissions

SEEDS = range(100)
"""`HATCHWAY_TEST_SEEDS=1000-1999` walks others; a failure names its seed and step, `=7-7` replays that one."""
BATCHES = 10
STEPS = 50
SHAPES = [(mcpu, mem) for mcpu in (0, 500, 1000, 2000, 4000, 9000) for mem in (0, 1, 2, 4, 8, 20)]


class Walk:
    """One seed's random operations, made to the store and to the model alike."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.slots, self.lines = Slots(db), Line(db)
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.prefix = f"w{seed}-"
        self.names = [f"s{i}" for i in range(self.random.randint(1, 6))]
        self.pools = ["pool:a", "pool:b"][: self.random.randint(0, 2)]
        self.model = LineModel(caps={}, pool={})
        self.asked: list[tuple[str, int, bool, list[Shape]]] = []
        self.version = 0
        self.applied: dict[int, list[Capacity]] = {}

    async def step(self) -> None:
        steps = {
            self.reserve: 50, self.release: 28, self.returned: 4, self.accept: 5, self.fails: 3, self.recovers: 3,
            self.apply: 5, self.pump: 2,
        }  # fmt: skip
        (chosen,) = self.random.choices(list(steps), list(steps.values()))
        await chosen()

    def plan(self) -> list[Shape]:
        """Some of the scalers, best first, each with a shape of its own: a label set may have its own resources."""
        scalers = self.random.sample(self.names, self.random.randint(1, min(3, len(self.names))))
        return [(scaler, *self.random.choice(SHAPES)) for scaler in scalers]

    async def reserve(self) -> None:
        r = self.random
        if self.asked and r.random() < 0.2:  # a lost reply, a grant to take up, a reset, or a waiter to plan anew
            agent_id, priority, wait, candidates = r.choice(self.asked)
            standing = next((w for w in self.model.line if w.agent_id == agent_id), None)
            if standing is not None:
                # What is asked for changes only with the config, as a workflow's plan does.
                wait = True
                candidates = standing.candidates if standing.version == self.version else self.plan()
        else:
            agent_id = f"{self.prefix}{len(self.asked)}"
            priority, wait, candidates = r.choice([1, 2, 3, 3, 3]), r.random() < 0.8, self.plan()
            self.asked.append((agent_id, priority, wait, candidates))
        expected = self.model.reserve(agent_id, priority, wait, candidates, self.version)
        answer = await self.slots.reserve(
            reservation(
                agent_id, priority=priority, wait=wait, candidates=[candidate(*c) for c in candidates],
                config_version=self.version,
            )
        )  # fmt: skip
        assert type(answer).__name__ == expected, (agent_id, answer)

    async def release(self) -> None:
        choice = list(self.model.held)
        if self.random.random() < 0.2:
            choice += [w.agent_id for w in self.model.line]
        if choice:
            agent_id = self.random.choice(choice)
            self.model.release(agent_id)
            await self.slots.release(agent_id, "released")

    async def returned(self) -> None:
        """A workflow was terminated: its signal was answered "not found". Mostly one that held an untaken grant."""
        choice = sorted(self.model.granted) if self.random.random() < 0.8 else sorted(self.model.held)
        if choice:
            agent_id = self.random.choice(choice)
            self.model.returned(agent_id)
            await self.slots.returned(agent_id)

    async def accept(self) -> None:
        scaler, accepting = self.random.choice(self.names), self.random.random() < 0.6
        self.model.accept(scaler, accepting)
        await self.lines.accept(scaler, accepting)

    async def fails(self) -> None:
        scaler = self.random.choice(self.names)
        self.model.fails(scaler)
        await Backoff(self.db).failed(
            scaler, "x", began_at=datetime.now(UTC) + timedelta(hours=1), code="quota", message="no more",
            base=timedelta(hours=1), max=timedelta(hours=1),
        )  # fmt: skip

    async def recovers(self) -> None:
        if self.model.failing:
            scaler = self.random.choice(sorted(self.model.failing))
            self.model.recovers(scaler)
            await self.db.fetch_all(
                "update scaler_failures set backoff_until = now() - interval '1 s' where scaler_name = %(scaler)s",
                {"scaler": scaler},
            )
            await self.lines.pump()

    async def pump(self) -> None:
        """The sweep looks, and finds nothing that a release, a reserve or an apply has left behind."""
        await self.lines.pump()

    async def apply(self) -> None:
        r = self.random
        kept = [n for n in self.names if r.random() < 0.9] or self.names[:1]
        scalers = {n: r.choice([*self.pools, None]) for n in kept} if r.random() < 0.3 else {}
        scalers = {n: scalers.get(n, self.model.pool.get(n)) for n in kept}
        caps: dict[str, Caps] = {GLOBAL: (r.choice([2, 5, 8, None]), r.choice([8000, 12000, None]), None)}
        for scope in [*self.pools, *(f"scaler:{n}" for n in kept)]:
            caps[scope] = (
                r.choice([0, 1, 2, 3, 5, None]),
                r.choice([4000, 8000, None, None]),
                r.choice([8, 16, None, None]),
            )
        self.model.apply(caps, scalers)
        capacities = [
            Capacity(scope, scope.removeprefix("scaler:"), scalers[scope.removeprefix("scaler:")], *limits)
            if scope.startswith("scaler:")
            else Capacity(scope, None, None, *limits)
            for scope, limits in caps.items()
        ]
        applied = await ConfigVersions(self.db).apply(
            {}, source="walk", by="test", note=None, expected_version=None, capacities=capacities
        )
        self.version, self.applied[applied.version] = applied.version, capacities

    async def stands_where_the_model_stands(self) -> bool:
        rows = await self.db.fetch_all(
            """
            select s.agent_id, s.scaler_name, r.mcpu, r.mem_bytes, 'pool:' || r.machine_pool, s.state = 'granted'
              from scaler_spawning_agents s
              join scaler_reservations r using (agent_id)
            """
        )
        model = self.model
        held = {agent: (scaler, mcpu, mem) for agent, scaler, mcpu, mem, _, _ in rows}
        pools = {agent: pool for agent, _, _, _, pool, _ in rows}
        granted = {agent for agent, _, _, _, _, granted in rows if granted}
        line = [w.agent_id for w in await self.lines.list()]
        return (held, pools, granted, line) == (
            model.held, model.held_pool, model.granted, [w.agent_id for w in model.in_order()],
        )  # fmt: skip


@pytest.fixture
async def logged(dsn: str) -> AsyncIterator[Database]:
    async with Database.open(dsn, max_size=2) as db:
        await log_admissions(db)
        yield db


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_the_line_stands_where_a_full_walk_would_put_it(logged: Database, batch: int) -> None:
    applied: dict[int, list[Capacity]] = {}
    for seed in seeds()[batch::BATCHES]:
        await logged.fetch_all("delete from scaler_spawning_agents")
        await logged.fetch_all("truncate scaler_waiters, scaler_provision_outcomes, scaler_failures")
        await logged.fetch_all("delete from scaler_capacity where scope <> 'global'")
        walk = Walk(logged, seed)
        walk.model.pool = dict.fromkeys(walk.names)
        await walk.apply()
        for step in range(STEPS):
            await walk.step()
            assert await walk.stands_where_the_model_stands(), f"seed {seed}, step {step}"
        assert await counters_are_right(logged), f"seed {seed}"
        applied |= walk.applied
    assert Judge(applied).breaches(await admissions(logged)) == []


def seeds() -> range:
    first, _, last = os.environ.get("HATCHWAY_TEST_SEEDS", "").partition("-")
    return range(int(first), int(last) + 1) if first else SEEDS
