"""What the reaper costs where much is going on, and how soon its verdict reaches the machine."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.databases import database
from bench.figures import Amount
from bench.provisions import Agents, Confirming
from hatchway.client import Started
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.rows import SpawnRow
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import new_namespace
from tests.support.postgres_fixtures import PostgresServer
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

ROWS = 100_000
SILENT = 1_000
LIVE = 1_000
CONDEMNED = 100
ROUNDS = 3
MOST_DATABASE_MS = 1_000.0
MOST_MEMORY_MB = 200.0
MOST_MS = 5_000.0

GATEWAY = "gateway-1"
REGISTRATION = "reg-1"
"""Of the agents that `bench.databases` makes."""


async def lines(server: PostgresServer, address: str) -> list[Amount]:
    """The figures of the reaper, on the Temporal server at `address`."""
    sweeps = [await _sweep(server, address) for _ in range(ROUNDS)]
    verdicts = [await _verdicts(server, address) for _ in range(ROUNDS)]
    what = f"sweep over {ROWS:,} rows, {SILENT:,} condemned"
    return [
        Amount(f"{what}: database time", MOST_DATABASE_MS, [sweep[0] for sweep in sweeps]),
        Amount(f"{what}: memory of its process", MOST_MEMORY_MB, [sweep[1] for sweep in sweeps], "MB"),
        Amount(f"p99 from a verdict to its teardown call, {LIVE:,} live agents", MOST_MS, verdicts),
    ]


# ── one pass over many ──────────────────────────────────────────────────────────────────────────────────────────────


async def _sweep(server: PostgresServer, address: str) -> tuple[float, float]:
    """Milliseconds that the database was at work for it, and the most memory that its process had, in MB."""
    dsn = await database(server, rows=ROWS)
    async with Database.open(dsn, max_size=2) as db:
        await _presence(db, silent=SILENT)
        await db.fetch_all("vacuum analyze")
    async with Database.open(dsn, max_size=2) as db:  # a session that has ended has reported what it did before
        before = await _busy_ms(db)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.reap_once", dsn, address, (await new_namespace(address)).namespace,
            stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        said, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the pass ended with {process.returncode}")
        took = await _busy_ms(db) - before
        condemned = await db.fetch_value(
            "select count(*) from scaler_provision_outcomes where condemned_at is not null"
        )
        if condemned != SILENT:
            raise RuntimeError(f"{condemned} of {SILENT} were condemned: this is not what was to be measured")
    server.drop(dsn)
    return took, float(said.split()[-1])


async def _presence(db: Database, silent: int = 0) -> None:
    """Everybody was heard of just now, but `silent` of them an hour ago. Their gateway has been there for as long."""
    await db.fetch_all(
        """
        insert into scaler_instances (instance_id, kind, version, host_ids, alive_since, last_seen_at)
        values (%(gateway)s, 'gateway', '1', '{}', now() - interval '1 day', now() + interval '1 hour')
        """,
        {"gateway": GATEWAY},
    )
    await db.fetch_all(
        """
        insert into scaler_agent_presence (agent_id, instance_id, last_seen_at)
        select agent_id, %(gateway)s,
               now() - case when row_number() over (order by agent_id) <= %(silent)s then interval '1 hour'
                            else '0' end
          from scaler_spawning_agents
        """,
        {"gateway": GATEWAY, "silent": silent},
    )


async def _busy_ms(db: Database) -> float:
    """How long sessions of this database have been at work. One reports its own within a second of being idle."""
    await asyncio.sleep(1.5)
    busy: float = await db.fetch_value("select active_time from pg_stat_database where datname = current_database()")
    return busy


# ── one verdict ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _verdicts(server: PostgresServer, address: str) -> float:
    """Milliseconds from the commit of a condemnation to the backend's destroy call, at the 99th percentile."""
    dsn = await database(server, scalers=("laptop",), rows=LIVE)
    async with Database.open(dsn, max_size=20) as db:
        lab = await Lab.on(await new_namespace(address), db, ScriptedBackend(Cloud()))
        await lab.apply(laptop(maxAgents=2 * LIVE, maxConcurrentSpawns=50))
        agents, registered = Agents(), asyncio.Queue[str]()
        called: dict[str, float] = {}

        async def destroy(agent_id: str) -> None:
            called.setdefault(agent_id, time.time())

        def spawned(row: SpawnRow) -> None:
            async def register() -> None:
                await lab.adopt(Started(row.workflow_id or "", "", row.agent_id), instance=GATEWAY)
                registered.put_nowait(row.agent_id)

            agents.boot(register())

        lab.backend.before_destroy = destroy
        lab.slots = Confirming(db, spawned)
        await _presence(db)
        async with control_worker(lab), _beating(db):
            lab.start_host(lab.backend)
            async with agents.at_work():
                jobs = [await lab.provision(job_id=f"silent-{n}", run_id="run") for n in range(CONDEMNED)]
                for _ in jobs:
                    await registered.get()
            await db.fetch_all(
                """
                update scaler_agent_presence
                   set last_seen_at = now() - interval '1 hour'
                 where agent_id = any(%(silent)s)
                """,
                {"silent": [job.agent_id for job in jobs]},
            )
            await lab.sweep()
            await asyncio.gather(*(lab.failure(job) for job in jobs))
            await lab.stop_host(lab.backend.host_id)
        rows = await db.fetch_all(
            "select agent_id, extract(epoch from condemned_at)::float8 from scaler_provision_outcomes"
            " where condemned_at is not null"
        )
    server.drop(dsn)
    waits: list[float] = sorted((called[agent_id] - condemned) * 1000 for agent_id, condemned in rows)
    if len(waits) != CONDEMNED:
        raise RuntimeError(f"{len(waits)} of {CONDEMNED} were condemned: this is not what was to be measured")
    return waits[round(len(waits) * 0.99) - 1]


@asynccontextmanager
async def _beating(db: Database) -> AsyncIterator[None]:
    """The live agents' heartbeats: every one of them each second, in batches as a gateway makes them."""
    presence = Presence(db)
    agents = [(f"live-{n}", REGISTRATION) for n in range(1, LIVE + 1)]

    async def beat() -> None:
        while True:
            for first in range(0, LIVE, 100):
                await presence.beat(GATEWAY, agents[first : first + 100])
            await asyncio.sleep(1)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
