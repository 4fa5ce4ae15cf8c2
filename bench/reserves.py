"""Reserves a second: on one hot scaler, on a full table, and over a slow network."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, LiteralString

from bench.figures import Against, Line, Rate, take
from bench.pgbench import Pgbench
from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots
from tests.support.postgres_fixtures import PostgresServer
from tests.support.proxy import FaultProxy

SCALER = "hot"
POOL = "machines"
CAP = 10_000_000
"""Agents that every scope has room for, and as many CPUs and GiB: each cap is looked at, and none ends the run."""
ROWS = 100_000
GIB = 2**30

CONNECTIONS = 8
CONNECTIONS_OVER_NETWORK = 16
SECONDS = 3
DELAY_S = 0.001

FLOOR = 0.35
FLOOR_FULL = 0.35
FLOOR_DELAY = 0.9

LOCK_AND_INSERT = r"""
\set n random(1, 9000000000000000)
begin;
select pg_advisory_xact_lock(42);
insert into bench_inserts (agent_id, scaler_name) values ('scaler-:n', 'hot');
commit;
"""
"""What a client does that admits under a lock and has no procedure for it: written as pgbench scripts are."""

LOCK_AND_INSERT_AT_ONCE = r"""
\set n random(1, 9000000000000000)
select pg_advisory_xact_lock(42)\; insert into bench_inserts (agent_id, scaler_name) values ('scaler-:n', 'hot');
"""
"""The same in one message and one implicit transaction, as our call is: nothing that checks a cap can be cheaper."""


async def lines(server: PostgresServer) -> list[Line]:
    """The figures of the store, on `server`."""
    pgbench = Pgbench(server.server.bin_dir / "pgbench", CONNECTIONS, SECONDS)
    hot, full = await _database(server), await _database(server, rows=ROWS)
    script = await reserve_script()
    taken = [
        *await take(
            _reserves(pgbench, hot, script),
            Against(
                f"reserve, every cap set ÷ lock + insert, {CONNECTIONS} connections", FLOOR,
                _inserts(pgbench, hot, LOCK_AND_INSERT),
            ),
            Against(
                "reserve ÷ lock + insert in one message", None, _inserts(pgbench, hot, LOCK_AND_INSERT_AT_ONCE)
            ),
        ),
        *await take(
            _reserves(pgbench, full, script),
            Against(f"the same at {ROWS:,} live rows", FLOOR_FULL, _inserts(pgbench, full, LOCK_AND_INSERT)),
        ),
        *await _over_a_slow_network(server, replace(pgbench, connections=CONNECTIONS_OVER_NETWORK), hot, script),
        *await take(
            _by_one_worker(hot),
            Against("Slots.reserve in one worker process ÷ reserve by pgbench", None, _reserves(pgbench, hot, script)),
            repetitions=2,
        ),
    ]  # fmt: skip
    for dsn in (hot, full):
        server.drop(dsn)
    return taken


async def _over_a_slow_network(server: PostgresServer, pgbench: Pgbench, dsn: str, script: str) -> list[Line]:
    """Through the same proxy, with a delay in each direction and without."""
    upstream = ("127.0.0.1", server.server.port)
    with FaultProxy(upstream, DELAY_S) as slow, FaultProxy(upstream) as quick:
        return await take(
            _reserves(replace(pgbench, address=("127.0.0.1", slow.port)), dsn, script),
            Against(
                f"reserve through 1 ms of delay ÷ 0 ms, {CONNECTIONS_OVER_NETWORK} connections", FLOOR_DELAY,
                _reserves(replace(pgbench, address=("127.0.0.1", quick.port)), dsn, script),
            ),
        )  # fmt: skip


# ── loads ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _reserves(pgbench: Pgbench, dsn: str, script: str) -> Rate:
    return _counted(pgbench, dsn, script, "select count(*) from scaler_reservations")


def _inserts(pgbench: Pgbench, dsn: str, script: str) -> Rate:
    return _counted(pgbench, dsn, script, "select count(*) from bench_inserts")


def _by_one_worker(dsn: str) -> Rate:
    """What one worker process gets through its pool, with its two connections in admission and its own CPU."""

    async def run() -> float:
        async with Database.open(dsn, max_size=20) as db:
            slots, numbers, name = Slots(db), count(), uuid.uuid4().hex
            began = time.monotonic()

            async def client() -> None:
                while time.monotonic() - began < SECONDS:
                    answer = await slots.reserve(_reservation(f"{name}-{next(numbers)}"))
                    if not isinstance(answer, Held):
                        raise RuntimeError(f"a reserve got no slot, which is not what was to be measured: {answer}")

            await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
            return next(numbers) / (time.monotonic() - began)

    return run


def _counted(pgbench: Pgbench, dsn: str, script: str, rows: LiteralString) -> Rate:
    """pgbench does not look at answers, and a refusal is quicker than a slot: only what left a row counts."""

    async def run() -> float:
        async with Database.open(dsn, max_size=1) as db:
            before: int = await db.fetch_value(rows)
            ran = await pgbench.run(dsn, script)
            made: int = await db.fetch_value(rows) - before
        if made != ran.transactions:
            raise RuntimeError(f"{ran.transactions} calls left {made} rows: this is not what was to be measured")
        return ran.per_second

    return run


async def reserve_script() -> str:
    """The statement and the arguments that `Slots.reserve` sends for a job, as a pgbench script."""
    heard = _Heard()
    await Slots(heard).reserve(_reservation(":n"))
    arguments = json.dumps(heard.arguments).replace("'", "''")
    if re.findall(r":[A-Za-z0-9_]+", arguments) != [":n"] * arguments.count(":n"):
        raise RuntimeError(f"pgbench would take something else in here for a variable: {arguments}")
    return f"\\set n random(1, 9000000000000000)\ncall public.hatchway_call('{heard.function}', '{arguments}', null);\n"


class _Heard(Database):
    """Hears what the store is called with, and refuses."""

    def __init__(self) -> None:
        self.function = ""
        self.arguments: Mapping[str, Any] = {}

    async def call(self, function: str, arguments: Mapping[str, Any], *, admission: bool = False) -> Any:
        self.function, self.arguments = function, arguments
        return {"answer": "already-ended", "end_reason": None}


def _reservation(name: str) -> Reservation:
    """A slot for one job, of one CPU and one GiB, as a worker asks for it."""
    return Reservation(
        agent_id=f"scaler-{name}",
        workflow_id=f"provision/job/{name}",
        workflow_first_run_id=f"run-{name}",
        job_id=f"job-{name}",
        run_id="run",
        priority=3,
        wait=True,
        candidates=[Candidate(SCALER, 1000, GIB, ["linux", "x64"], ["gpu"], "container", [], ["builder"])],
        config_version=1,
        owner_instance_id="worker-1",
        reserved_for=timedelta(minutes=5),
        wait_timeout=timedelta(hours=1),
    )


# ── databases ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _database(server: PostgresServer, rows: int = 0) -> str:
    """A database with one scaler in one pool, every cap of every scope set, and `rows` agents at work on it."""
    dsn = await asyncio.to_thread(server.database)
    scopes = [
        Capacity("global"),
        Capacity(f"pool:{POOL}"),
        Capacity(f"scaler:{SCALER}", scaler=SCALER, pool=f"pool:{POOL}"),
    ]
    async with Database.open(dsn, max_size=1) as db:
        await ConfigVersions(db).apply(
            {}, source="bench", by="bench", note=None, expected_version=None,
            capacities=[replace(s, max_agents=CAP, max_mcpu=CAP * 1000, max_mem_bytes=CAP * GIB) for s in scopes],
        )  # fmt: skip
        await db.fetch_all(
            """
            create table bench_inserts (
              agent_id    text primary key,
              scaler_name text not null,
              reserved_at timestamptz not null default now()
            )
            """
        )
        if rows:
            await _fill(db, rows)
    return dsn


async def _fill(db: Database, rows: int) -> None:
    """Agents of the hot scaler, adopted and at work. The counters are set at once: row by row would take a minute."""
    await db.fetch_all("alter table scaler_reservations disable trigger hatchway_count")
    await db.fetch_all(
        """
        insert into scaler_spawning_agents
          (agent_id, scaler_name, job_id, bound_job_id, workflow_id, workflow_first_run_id, host_id, state,
           adopted_by, adopted_at, registration_id)
        select 'live-' || n, 'hot', 'live-' || n, 'live-' || n, 'w' || n, 'r' || n, 'h' || n %% 50, 'active',
               'gateway-1', now(), 'reg-1'
          from generate_series(1, %(rows)s) n
        """,
        {"rows": rows},
    )
    await db.fetch_all(
        """
        insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes, machine_pool)
        select agent_id, scaler_name, 1, 1073741824, 'machines'
          from scaler_spawning_agents
        """
    )
    await db.fetch_all(
        """
        insert into scaler_provision_outcomes (agent_id, job_id, scaler_name, adopted_by, adopted_at)
        select agent_id, job_id, scaler_name, adopted_by, adopted_at
          from scaler_spawning_agents
        """
    )
    await db.fetch_all(
        """
        insert into scaler_agent_jobs (agent_id, job_id)
        select agent_id, job_id
          from scaler_spawning_agents
        """
    )
    await db.fetch_all(
        """
        update scaler_capacity
           set agents = used.agents, mcpu = used.mcpu, mem_bytes = used.mem_bytes
          from (select count(*) agents, sum(mcpu) mcpu, sum(mem_bytes) mem_bytes from scaler_reservations) used
        """
    )
    await db.fetch_all("alter table scaler_reservations enable trigger hatchway_count")
    await db.fetch_all("vacuum analyze")
