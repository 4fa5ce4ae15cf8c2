"""Random walks through the line: after every step the store stands where the naive model stands."""

from __future__ import annotations

import random

import pytest

from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from tests.integration.store.factory import candidate, counters_are_right, reservation
from tests.integration.store.line_model import GLOBAL, Caps, LineModel, Shape

SEEDS = 100
BATCHES = 10
STEPS = 40


class Walk:
    """One seed's random operations, made to the store and to the model alike."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db = db
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.prefix = f"w{seed}-"
        self.names = [f"s{i}" for i in range(self.random.randint(1, 6))]
        self.pools = ["pool:a", "pool:b"][: self.random.randint(0, 2)]
        self.model = LineModel(caps={}, pool={})
        self.asked: list[tuple[str, int, bool, list[Shape]]] = []

    async def step(self) -> None:
        match self.random.random():
            case p if p < 0.55:
                await self.reserve()
            case p if p < 0.90:
                await self.release()
            case p if p < 0.95:
                await self.accept()
            case _:
                await self.apply()

    async def reserve(self) -> None:
        r = self.random
        if self.asked and r.random() < 0.1:
            agent_id, priority, wait, candidates = r.choice(self.asked)
        else:
            scalers = r.sample(self.names, r.randint(1, min(3, len(self.names))))
            candidates = [(s, r.choice([500, 1000, 2000, 4000, 9000]), r.choice([1, 2, 4, 8, 20])) for s in scalers]
            agent_id = f"{self.prefix}{len(self.asked)}"
            priority, wait = r.choice([1, 2, 3, 3, 3]), r.random() < 0.8
            self.asked.append((agent_id, priority, wait, candidates))
        expected = self.model.reserve(agent_id, priority, wait, candidates)
        answer = await Slots(self.db).reserve(
            reservation(agent_id, priority=priority, wait=wait, candidates=[candidate(*c) for c in candidates])
        )
        assert type(answer).__name__ == expected, (agent_id, answer)

    async def release(self) -> None:
        choice = list(self.model.held)
        if self.random.random() < 0.2:
            choice += [w.agent_id for w in self.model.line]
        if choice:
            agent_id = self.random.choice(choice)
            self.model.release(agent_id)
            await Slots(self.db).release(agent_id, "released")

    async def accept(self) -> None:
        scaler, accepting = self.random.choice(self.names), self.random.random() < 0.6
        self.model.accept(scaler, accepting)
        await Line(self.db).accept(scaler, accepting)

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
        await ConfigVersions(self.db).apply(
            {}, source="walk", by="test", note=None, expected_version=None, capacities=capacities
        )

    async def stands_where_the_model_stands(self) -> bool:
        rows = await self.db.fetch_all(
            """
            select s.agent_id, s.scaler_name, r.mcpu, r.mem_bytes
              from scaler_spawning_agents s join scaler_reservations r using (agent_id)
            """
        )
        held = {agent: (scaler, mcpu, mem) for agent, scaler, mcpu, mem in rows}
        line = [w.agent_id for w in await Line(self.db).list()]
        return held == self.model.held and line == [w.agent_id for w in self.model.in_order()]


@pytest.mark.parametrize("batch", range(BATCHES))
async def test_the_line_stands_where_a_full_walk_would_put_it(db: Database, batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        await db.fetch_all("truncate scaler_spawning_agents, scaler_waiters, scaler_provision_outcomes cascade")
        await db.fetch_all("delete from scaler_capacity where scope <> 'global'")
        await db.fetch_all("update scaler_capacity set agents = 0, mcpu = 0, mem_bytes = 0")
        walk = Walk(db, seed)
        walk.model.pool = dict.fromkeys(walk.names)
        await walk.apply()
        for step in range(STEPS):
            await walk.step()
            assert await walk.stands_where_the_model_stands(), (seed, step)
        assert await counters_are_right(db), seed
