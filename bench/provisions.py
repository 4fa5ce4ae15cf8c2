"""Provisions a second with a backend that does nothing, against workflows that take the same steps and do nothing.

One process holds the workers, whoever starts the workflows, and the agents: what any of them costs is on both sides.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from bench.bare import CONTROL, Bare, BareWorkers, LocalBare, LocalShaped, Nothing, Shaped
from bench.figures import Against, Line, take
from hatchway.client import Started
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow
from hatchway.store.slots import Slots
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import new_namespace
from tests.support.postgres_fixtures import PostgresServer
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

WORKFLOWS = 100
"""How many one run starts and sees to their end."""
AT_ONCE = 20
BOOT_S = 0.1
"""From the confirmed spawn to the agent's first word. Without it an adoption may overtake the deadline's timer."""

SHAPED = "shaped"
"""How the ids of those bare workflows begin that have an agent."""

FLOOR_BARE = 0.7
FLOOR_SHAPED = 0.9


async def lines(server: PostgresServer, address: str) -> list[Line]:
    """The figures of a whole provision, on the Temporal server at `address`."""
    async with running(server, address) as bench:
        for load in (bench.provisions, bench.bare, bench.shaped, bench.local_bare, bench.local_shaped):
            await load()  # caches and connections warm up
        return await take(
            bench.provisions,
            Against("provisions, no-op backend ÷ bare workflow of as many no-op activities", FLOOR_BARE, bench.bare),
            Against("the same ÷ one with its timer, update, signal, upserts too", FLOOR_SHAPED, bench.shaped),
            Against("the same ÷ bare workflow, local where a provision's are", FLOOR_BARE, bench.local_bare),
            Against("the same ÷ that with timer, update, signal, upserts too", FLOOR_SHAPED, bench.local_shaped),
        )


@asynccontextmanager
async def running(server: PostgresServer, address: str) -> AsyncIterator[Bench]:
    """Every worker of both sides, on one namespace. Nothing polls when it ends."""
    dsn = await asyncio.to_thread(server.database)
    temporal = await new_namespace(address)
    async with Database.open(dsn, max_size=20) as db:
        agents = Agents()
        lab = await Lab.on(temporal, db, ScriptedBackend(Cloud()))
        bench = Bench(temporal, lab, agents)
        lab.slots = Confirming(db, bench.provisioned)
        await lab.apply(laptop(maxAgents=10 * AT_ONCE))
        async with control_worker(lab), BareWorkers(temporal, bench.spawned):
            lab.start_host(lab.backend)
            try:
                yield bench
            finally:
                await lab.stop_host(lab.backend.host_id)
    server.drop(dsn)


class Confirming(Slots):
    """The store's slots, which say so when a spawn is confirmed."""

    def __init__(self, db: Database, confirmed: Callable[[SpawnRow], None]) -> None:
        super().__init__(db)
        self._confirmed = confirmed

    async def confirm_spawned(
        self, agent_id: str, compute: Mapping[str, Any], adoption_timeout: timedelta
    ) -> SpawnRow | None:
        row = await super().confirm_spawned(agent_id, compute, adoption_timeout)
        if row is not None:
            self._confirmed(row)
        return row


class Agents:
    """The agents of a run: each boots, does its part and is gone. One that fails, fails the run."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            self._group = group
            yield group
        self._group = None

    def boot(self, part: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None, "an agent was spawned after its run had ended"
        self._group.create_task(self._live(part))

    async def _live(self, part: Coroutine[Any, Any, None]) -> None:
        await asyncio.sleep(BOOT_S)
        await part


class Bench:
    """The loads. Each is a closed loop: so many at once, the next one as soon as one has ended."""

    def __init__(self, temporal: Client, lab: Lab, agents: Agents) -> None:
        self._temporal = temporal
        self._lab = lab
        self._agents = agents

    async def provisions(self) -> float:
        async def one() -> None:
            started = await self._lab.provision(job_id=uuid.uuid4().hex, run_id="run")
            await self._lab.hatchway.outcome(started)

        return await self._rate(one)

    async def bare(self) -> float:
        return await self._rate(lambda: self._run(Bare.run, "bare"))

    async def shaped(self) -> float:
        return await self._rate(lambda: self._run(Shaped.run, SHAPED))

    async def local_bare(self) -> float:
        return await self._rate(lambda: self._run(LocalBare.run, "bare"))

    async def local_shaped(self) -> float:
        return await self._rate(lambda: self._run(LocalShaped.run, SHAPED))

    async def _run(self, workflow: Callable[[Any, Nothing], Awaitable[Nothing]], kind: str) -> None:
        await self._temporal.execute_workflow(workflow, Nothing(), id=f"{kind}/{uuid.uuid4().hex}", task_queue=CONTROL)

    async def _rate(self, one: Callable[[], Awaitable[None]]) -> float:
        left = WORKFLOWS

        async def loop() -> None:
            nonlocal left
            while left:
                left -= 1
                await one()

        async with self._agents.at_work() as group:
            began = time.monotonic()
            await asyncio.gather(*(group.create_task(loop()) for _ in range(AT_ONCE)))
            took = time.monotonic() - began
        return WORKFLOWS / took

    # ── the agents' parts ───────────────────────────────────────────────────────────────────────────────────────

    def provisioned(self, row: SpawnRow) -> None:
        """A provision's spawn is confirmed: its agent comes up, registers, and reports its job done."""
        assert row.workflow_id is not None
        started = Started(row.workflow_id, "", row.agent_id)

        async def part() -> None:
            await self._lab.adopt(started)
            await self._lab.complete(started)

        self._agents.boot(part())

    def spawned(self, workflow_id: str) -> None:
        """A bare workflow's spawn is done: the same words are said to it, if it listens."""
        if not workflow_id.startswith(f"{SHAPED}/"):
            return
        handle = self._temporal.get_workflow_handle(workflow_id)

        async def part() -> None:
            await handle.execute_update("adopt", Nothing(), result_type=Nothing)
            await handle.signal("release", Nothing())

        self._agents.boot(part())
