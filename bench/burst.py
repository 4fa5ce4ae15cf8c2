"""Four hundred jobs in one moment: how long until they have their agents, and what each of them costs the servers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bench.figures import Amount, Line, Pair
from bench.provisions import Agents, Confirming
from hatchway.client import Started
from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import new_namespace
from tests.support.postgres_fixtures import PostgresServer
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

FEW, MANY = 40, 400
ROUNDS = 3
CEILING = 1.5
"""A job of a burst of four hundred takes no longer than one and a half of forty: nothing grows with the crowd."""
MOST_TRANSACTIONS, MOST_EVENTS = 20.0, 55.0
"""Of Postgres and of Temporal, for one agent from its request to its outcome."""


async def lines(server: PostgresServer, address: str) -> list[Line | Amount]:
    """The figures of a burst, on the Temporal server at `address`."""
    async with running(server, address) as burst:
        await burst.of(FEW)  # caches and connections warm up
        pairs, halves, most, transactions, events = [], [], [], [], []
        for _ in range(ROUNDS):
            few, many = await burst.of(FEW), await burst.of(MANY)
            pairs.append(Pair(many.reached(0.95) / MANY, few.reached(0.95) / FEW))
            halves.append(many.reached(0.5))
            most.append(many.reached(0.95))
            transactions.append(many.transactions / MANY)
            events.append(many.events / MANY)
    return [
        Line(f"{MANY} at once: 95 % adopted, each, ÷ the same of {FEW}", None, pairs, CEILING, "ms"),
        Amount(f"{MANY} at once: half of them adopted", None, halves),
        Amount(f"{MANY} at once: 95 % of them adopted", None, most),
        Amount("database transactions of one agent in it", MOST_TRANSACTIONS, transactions, ""),
        Amount("events of one agent's history in it", MOST_EVENTS, events, ""),
    ]


@asynccontextmanager
async def running(server: PostgresServer, address: str) -> AsyncIterator[Burst]:
    dsn = await asyncio.to_thread(server.database)
    async with Database.open(dsn, max_size=20) as db:
        lab = await Lab.on(await new_namespace(address), db, ScriptedBackend(Cloud()))
        burst = Burst(lab)
        lab.slots = Confirming(db, burst.spawned)
        await lab.apply(laptop(maxAgents=MANY, maxConcurrentSpawns=50))
        async with control_worker(lab):
            lab.start_host(lab.backend)
            try:
                yield burst
            finally:
                await lab.stop_host(lab.backend.host_id)
    server.drop(dsn)


class Taken:
    """What one burst took: when its agents were adopted, in milliseconds from its beginning; events of its histories;
    transactions of its database, until every job had its outcome."""

    def __init__(self, adopted: Sequence[float], events: int, transactions: int) -> None:
        self.events = events
        self.transactions = transactions
        self._adopted = sorted(adopted)

    def reached(self, part: float) -> float:
        """Until so large a part of them was adopted."""
        return self._adopted[round(len(self._adopted) * part) - 1]


class Burst:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._agents = Agents()
        self._adopted: list[float] = []

    async def of(self, number: int) -> Taken:
        self._adopted.clear()
        before, began = await self._transactions(), time.monotonic()
        async with self._agents.at_work():
            jobs = await asyncio.gather(
                *(self._lab.provision(job_id=uuid.uuid4().hex, run_id="run") for _ in range(number))
            )
            await asyncio.gather(*(self._lab.hatchway.outcome(job) for job in jobs))
        events = [(await self._lab.handle(job).describe()).history_length for job in jobs]
        adopted = [(moment - began) * 1000 for moment in self._adopted]
        if len(adopted) != number:
            raise RuntimeError(f"{len(adopted)} of {number} were adopted: this is not what was to be measured")
        return Taken(adopted, sum(events), await self._transactions() - before)

    async def _transactions(self) -> int:
        """Of the database so far. A session reports its own a second late, and the last few later still."""
        await asyncio.sleep(1.5)
        number: int = await self._lab.db.fetch_value(
            "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        )
        return number

    def spawned(self, row: SpawnRow) -> None:
        assert row.workflow_id is not None
        started = Started(row.workflow_id, "", row.agent_id)

        async def part() -> None:
            await self._lab.adopt(started)
            self._adopted.append(time.monotonic())
            await self._lab.complete(started)

        self._agents.boot(part())
