"""What one reserve takes where much is going on, against what it takes where little is."""

from __future__ import annotations

from statistics import median

from bench.databases import database
from bench.figures import Against, Line, Rate, take
from bench.pgbench import Pgbench
from bench.reserves import reserve_script
from hatchway.store.pool import Database
from tests.support.postgres_fixtures import PostgresServer

SCALERS = [f"s{n}" for n in range(50)]
FULL = SCALERS[25:]
ROOMY = SCALERS[0]
FEW, MANY = 100, 100_000
WAITERS = 10_000
SAMPLES = 100
ROUNDS = 11
"""Short ones in turn: what a neighbour does to the machine meanwhile falls on both sides of a pair, or spoils one."""

CEILING = 1.5


async def lines(server: PostgresServer) -> list[Line]:
    """The figures of the store's size, on `server`."""
    pgbench = Pgbench(server.server.bin_dir / "pgbench", 1, 0)
    few = await database(server, scalers=SCALERS, rows=FEW)
    many = await database(server, scalers=SCALERS, rows=MANY)
    behind = await database(server, scalers=SCALERS, rows=MANY, full=FULL, waiters=WAITERS)
    few_wait = await database(server, scalers=SCALERS, rows=MANY, full=FULL, waiters=FEW)
    slot, place = await reserve_script(ROOMY), await reserve_script(FULL[0])
    what = f"p50 of a reserve in {len(SCALERS)} scalers"
    taken = [
        *await take(
            _p50(pgbench, many, slot),
            _against(f"{what}, {MANY:,} live rows ÷ {FEW}", CEILING, _p50(pgbench, few, slot)),
            repetitions=ROUNDS,
        ),
        *await take(
            _p50(pgbench, behind, slot),
            _against(f"the same with {WAITERS:,} in line elsewhere ÷ {FEW} rows", CEILING, _p50(pgbench, few, slot)),
            repetitions=ROUNDS,
        ),
        *await take(
            _p50(pgbench, behind, place),
            _against(
                f"p50 of joining a line, {WAITERS:,} waiters ÷ {FEW}", CEILING, _p50(pgbench, few_wait, place)
            ),
            repetitions=ROUNDS,
        ),
    ]  # fmt: skip
    for dsn in (few, many, behind, few_wait):
        server.drop(dsn)
    return taken


def _against(title: str, ceiling: float, theirs: Rate) -> Against:
    return Against(title, None, theirs, ceiling, "ms")


def _p50(pgbench: Pgbench, dsn: str, script: str) -> Rate:
    """The median of a hundred calls on one connection, in milliseconds. They leave nothing behind."""

    async def run() -> float:
        async with Database.open(dsn, max_size=1) as db:
            taken = await pgbench.times(dsn, script, SAMPLES)
            left: int = await db.fetch_value(
                """
                with slots as (delete from scaler_spawning_agents where agent_id like 'scaler-%' returning agent_id),
                     places as (delete from scaler_waiters where agent_id like 'scaler-%' returning agent_id)
                select (select count(*) from slots) + (select count(*) from places)
                """
            )
            if left != SAMPLES:
                raise RuntimeError(f"{SAMPLES} calls left {left} rows: this is not what was to be measured")
            await db.fetch_all("vacuum")
        return median(taken)

    return run
