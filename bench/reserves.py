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

from bench.databases import GIB, HOT, database
from bench.figures import Against, Line, Rate, take
from bench.pgbench import Pgbench
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots
from tests.support.postgres_fixtures import PostgresServer
from tests.support.proxy import FaultProxy

ROWS = 100_000

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
    hot, full = await database(server), await database(server, rows=ROWS)
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


async def reserve_script(scaler: str = HOT) -> str:
    """The statement and the arguments that `Slots.reserve` sends for a job, as a pgbench script."""
    heard = _Heard()
    await Slots(heard).reserve(_reservation(":n", scaler))
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


def _reservation(name: str, scaler: str = HOT) -> Reservation:
    """A slot for one job, of one CPU and one GiB, as a worker asks for it."""
    return Reservation(
        agent_id=f"scaler-{name}",
        workflow_id=f"provision/job/{name}",
        workflow_first_run_id=f"run-{name}",
        job_id=f"job-{name}",
        run_id="run",
        priority=3,
        wait=True,
        candidates=[Candidate(scaler, 1000, GIB, ["linux", "x64"], ["gpu"], "container", [], ["builder"])],
        config_version=1,
        owner_instance_id="worker-1",
        reserved_for=timedelta(minutes=5),
        wait_timeout=timedelta(hours=1),
    )
