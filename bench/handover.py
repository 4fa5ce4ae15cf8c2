"""How long a freed slot is idle: from the transaction that gives it to the next in the line to that one's spawn call.

Nothing polls here, and no schedule runs: what is measured is the hand-over alone.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

from bench.figures import REPETITIONS, Amount
from bench.provisions import Agents, Confirming
from hatchway.client import Started
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import new_namespace
from tests.support.postgres_fixtures import PostgresServer
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

CAP = 2
JOBS = 40
"""How many one run starts at once: all but the first two wait for somebody else's slot."""
CEILING_MS = 100.0


async def lines(server: PostgresServer, address: str) -> list[Amount]:
    """The figures of the line, on the Temporal server at `address`."""
    async with _running(server, address) as line:
        await line.p50()  # caches and connections warm up
        taken = [await line.p50() for _ in range(REPETITIONS)]
    return [Amount("p50 from a release to the next waiter's spawn call", CEILING_MS, taken)]


@asynccontextmanager
async def _running(server: PostgresServer, address: str) -> AsyncIterator[Handover]:
    dsn = await asyncio.to_thread(server.database)
    async with Database.open(dsn, max_size=20) as db:
        lab = await Lab.on(await new_namespace(address), db, ScriptedBackend(Cloud()))
        line = Handover(lab)
        lab.slots = Confirming(db, line.spawned)
        lab.backend.before_create = line.called
        await lab.apply(laptop(maxAgents=CAP))
        async with control_worker(lab):
            lab.start_host(lab.backend)
            try:
                yield line
            finally:
                await lab.stop_host(lab.backend.host_id)
    server.drop(dsn)


class Handover:
    """A full scaler and a line before it; whoever gets a slot works for a moment and leaves."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._agents = Agents()
        self._waited: list[float] = []
        self._queued: set[str] = set()

    async def p50(self) -> float:
        """Milliseconds."""
        self._waited.clear()
        async with self._agents.at_work():
            jobs = [await self._lab.provision(job_id=uuid.uuid4().hex, run_id="run") for _ in range(JOBS)]
            await asyncio.gather(*(self._lab.hatchway.outcome(job) for job in jobs))
        if len(self._waited) < JOBS / 2:
            raise RuntimeError(f"{len(self._waited)} of {JOBS} had to wait: this is not what was to be measured")
        return median(self._waited)

    async def called(self, agent_id: str) -> None:
        """A spawn call. A slot that was handed over has `notified_at`; its row is as old as the transaction that freed
        the slot, which is a little more than asked for: from that one's begin, not from its commit."""
        now = time.time()
        since = await self._lab.db.fetch_value(
            """
            select extract(epoch from spawned_at)::float8
              from scaler_spawning_agents
             where agent_id = %(agent_id)s and notified_at is not null
            """,
            {"agent_id": agent_id},
        )
        if since is not None:
            self._waited.append((now - since) * 1000)

    def spawned(self, row: SpawnRow) -> None:
        """Its agent comes up, registers, and reports its job done."""
        assert row.workflow_id is not None
        started = Started(row.workflow_id, "", row.agent_id)

        async def part() -> None:
            await self._lab.adopt(started)
            await self._lab.complete(started)

        self._agents.boot(part())
