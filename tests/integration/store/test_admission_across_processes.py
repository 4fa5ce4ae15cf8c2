"""Caps hold across processes, whatever the server's isolation is, and whoever dies on the way."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hatchway.store.pool import Database
from hatchway.store.slots import AtCapacity, Held, Slots
from tests.integration.store.factory import SCALER, counters_are_right, reservation, set_caps, until
from tests.support.admissions import break_the_admission_lock
from tests.support.postgres_fixtures import set_isolation

ROOT = Path(__file__).parents[3]
PROCESSES = 8
EACH = 50
CAP = 20


@asynccontextmanager
async def hammers(dsn: str, count: int, each: int, scalers: Sequence[str]) -> AsyncIterator[list[Process]]:
    """Processes that are connected and wait for the word; killed on the way out."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.store.hammer", dsn, f"p{n}", str(each), *scalers),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
        )
        for n in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def start(processes: Sequence[Process]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")


async def admitted(dsn: str, scalers: Sequence[str]) -> int:
    """How many slots eight processes believe that they hold after fifty reserves each."""
    async with hammers(dsn, PROCESSES, EACH, scalers) as processes:
        start(processes)
        total = 0
        for process in processes:
            assert process.stdout is not None
            total += int(await process.stdout.readline())
        return total


@pytest.mark.scenario("S09")
@pytest.mark.parametrize(
    ("caps", "everything"),
    [({"s1": CAP}, None), ({"s1": 50, "s2": 50, "s3": 50}, CAP)],
    ids=["one scaler's cap", "three scalers under one global cap"],
)
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_eight_processes_are_admitted_up_to_the_cap_exactly(
    dsn: str, way: str, isolation: str, caps: dict[str, int], everything: int | None
) -> None:
    set_isolation(dsn, isolation)
    async with Database.open(way) as db:
        await set_caps(db, dict(caps), everything)

        got = await admitted(way, list(caps))

        assert got == CAP
        assert len(await Slots(db).list()) == CAP
        assert await counters_are_right(db)


async def test_without_the_admission_lock_the_cap_is_broken(dsn: str) -> None:
    """The test above can fail: the lock is what it proves."""
    async with Database.open(dsn) as db:
        await set_caps(db, {SCALER: CAP})
        await break_the_admission_lock(db)

        assert await admitted(dsn, [SCALER]) > CAP


async def test_killed_processes_leak_nothing_that_release_cannot_free(dsn: str) -> None:
    async with Database.open(dsn) as db, hammers(dsn, 4, 0, ["s1", "s2", "--churn"]) as processes:
        await set_caps(db, {"s1": 2, "s2": 2}, 3)
        slots = Slots(db)
        start(processes)

        async def some_ended(count: int) -> bool:
            return bool(await db.fetch_value("select count(*) >= %(n)s from scaler_provision_outcomes", {"n": count}))

        for n, process in enumerate(processes, start=1):
            await until(lambda seen=n: some_ended(100 * seen))  # type: ignore[misc]
            process.kill()
            await process.wait()
        # The server rolls back what a dead client had open, as soon as it notices.
        await until(lambda: no_other_session_works(db))

        for row in await slots.list():
            await slots.release(row.agent_id, "operator")

        assert await slots.list() == []
        assert await counters_are_right(db)
        answers = [await slots.reserve(reservation(f"after-{n}", wait=False)) for n in range(3)]
        assert [type(a) for a in answers] == [Held, Held, AtCapacity]


async def no_other_session_works(db: Database) -> bool:
    return bool(
        await db.fetch_value(
            """
            select not exists (
              select from pg_stat_activity
               where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid())
            """
        )
    )


@pytest.mark.scenario("S10")
async def test_ten_calls_at_once_against_a_cap_of_three_get_three(db: Database) -> None:
    slots = Slots(db)

    answers = await asyncio.gather(*(slots.reserve(reservation(f"a{n}", wait=False)) for n in range(10)))

    assert [type(a) for a in answers].count(Held) == 3
    assert [type(a) for a in answers].count(AtCapacity) == 7
