"""Postgres goes away and comes back: calls fail in time and by type, then work again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from hatchway.errors import StoreContended, StoreUnreachable
from hatchway.store import pool
from hatchway.store.adoption import Adoption
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from tests.integration.store.conftest import DURABILITY_OFF
from tests.integration.store.factory import SCALER, RowBarrier, counters_are_right, held, reservation, set_caps, until
from tests.support.postgres_fixtures import PostgresServer, running_postgres
from tests.support.proxy import FaultProxy
from tests.support.services import POSTGRES15_BIN

IN_TIME_S = 7.0
"""5 s for a connection, and two for a busy machine."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(None, id="pg18"),
        pytest.param(POSTGRES15_BIN, id="pg15", marks=pytest.mark.needs("postgres15")),
    ],
)
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that only these tests use, so that they may stop it. Durable: it must remember."""
    bin_dir: Path | None = request.param
    with running_postgres(bin_dir=bin_dir, settings={"fsync": DURABILITY_OFF["fsync"]}) as server:
        yield server


@pytest.fixture
async def fallible(own_server: PostgresServer) -> AsyncIterator[Database]:
    async with Database.open(own_server.database(), min_size=3, max_size=5) as db:
        await set_caps(db, {SCALER: 100})
        yield db


async def works(db: Database) -> bool:
    try:
        await db.ping()
    except StoreUnreachable:
        return False
    return True


async def is_away(db: Database) -> bool:
    return not await works(db)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_calls_fail_typed_and_in_time_while_postgres_is_away_then_work_again(
    own_server: PostgresServer, fallible: Database, kill: bool
) -> None:
    # Arrange: every connection of the pool has been used.
    slots = Slots(fallible)
    await asyncio.gather(*(slots.reserve(reservation(f"a{n}")) for n in range(10)))
    server = own_server.server

    # Act
    if kill:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        # Its sessions live on for a moment, and serve, until they notice.
        await until(lambda: is_away(fallible))
    else:
        await asyncio.to_thread(server.stop)
    began = time.monotonic()
    answers = await asyncio.gather(
        *(slots.reserve(reservation(f"b{n}")) for n in range(3)),
        Adoption(fallible).adopt("a1", "gateway-1", "reg-1"),
        slots.get("a1"),
        return_exceptions=True,
    )
    took = time.monotonic() - began
    await asyncio.to_thread(server.start)
    await until(lambda: works(fallible))

    # Assert
    assert [type(a) for a in answers] == [StoreUnreachable] * 5
    assert took < 2 * IN_TIME_S  # two admissions at a time: the third waited for the first two
    assert len(await slots.list()) == 10
    await asyncio.gather(*(slots.reserve(reservation(f"b{n}")) for n in range(10)))
    assert len(await slots.list()) == 20
    assert await counters_are_right(fallible)


async def test_a_restart_between_two_calls_is_not_even_noticed(own_server: PostgresServer, fallible: Database) -> None:
    """The pool drops the connections that the server closed while they lay idle, before a call gets one."""
    await fallible.ping()
    await asyncio.to_thread(own_server.server.stop)
    await asyncio.to_thread(own_server.server.start)

    for _ in range(10):
        await fallible.ping()


async def test_a_network_that_swallows_everything_does_not_hang_a_call(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CALL_S", 1.0)
    dsn = own_server.database()
    with FaultProxy(("127.0.0.1", own_server.server.port)) as proxy:
        async with Database.open(psycopg.conninfo.make_conninfo(dsn, port=proxy.port), max_size=2) as db:
            await db.ping()
            proxy.hang()
            began = time.monotonic()
            with pytest.raises(StoreUnreachable):
                await db.ping()
            # The driver tries to cancel the query first, over the same network: twice 5 s.
            assert time.monotonic() - began < 1 + 10 + 3
            proxy.heal()
            await until(lambda: works(db))


async def test_a_lock_that_is_held_too_long_is_contention_and_changes_nothing(
    own_server: PostgresServer, fallible: Database
) -> None:
    await held(fallible, "a1")
    dsn = own_server.server.dsn(str(await fallible.fetch_value("select current_database()")))
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute("select hatchway_lock()")

        with pytest.raises(StoreContended, match="55P03"):
            await Slots(fallible).reserve(reservation("a2"))

    assert [r.agent_id for r in await Slots(fallible).list()] == ["a1"]


async def test_a_wrong_password_is_said_at_once_and_not_repeated(own_server: PostgresServer) -> None:
    dsn = psycopg.conninfo.make_conninfo(own_server.dsn, password="hunter2-wrong")

    with pytest.raises(StoreUnreachable, match="password authentication failed") as failure:
        async with Database.open(dsn):
            pass
    assert "hunter2" not in str(failure.value)


async def test_a_server_that_became_read_only_is_an_outage_and_over_once_it_takes_writes_again(
    own_server: PostgresServer, fallible: Database
) -> None:
    """As a demoted primary does. A session stays read-only that began as such: nobody has to end it by hand."""
    await held(fallible, "a1")
    dsn = own_server.server.dsn(str(await fallible.fetch_value("select current_database()")))
    _read_only(dsn, "on")
    said = ""

    async def takes_writes() -> bool:
        nonlocal said
        try:
            return await Slots(fallible).request_drain("a1")
        except StoreUnreachable as e:
            said = str(e)
            return False

    async def is_read_only() -> bool:
        return not await takes_writes() and "25006" in said

    await until(is_read_only)

    _read_only(dsn, "off")

    await until(takes_writes)


def _read_only(dsn: str, value: str) -> None:
    """For every session from now on; those that take writes end, as in a failover."""
    with psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=off") as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        setting = psycopg.sql.SQL("alter database {} set default_transaction_read_only = {}")
        connection.execute(setting.format(name, psycopg.sql.Literal(value)))
        if value == "on":
            connection.execute(
                """
                select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid()
                """
            )


@pytest.mark.scenario("S36")
async def test_no_transaction_stays_open_while_its_caller_does_something_else(own_server: PostgresServer) -> None:
    """200 provisions that each take their time between calls share five connections without ever holding one."""
    dsn = own_server.database()
    done = 0

    async def provision(slots: Slots, adoption: Adoption, agent_id: str) -> None:
        nonlocal done
        await slots.reserve(reservation(agent_id))
        await asyncio.sleep(1)  # stands for the backend's call
        await adoption.adopt(agent_id, "gateway-1", "reg-1")
        await asyncio.sleep(1)
        await slots.release(agent_id, "idle")
        done += 1

    seen: list[tuple[int, int]] = []

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as watcher:
            while done < 200:
                cursor = await watcher.execute(
                    """
                    select count(*), count(*) filter (where state like 'idle in transaction%%')
                      from pg_stat_activity
                     where datname = %s
                    """,
                    (psycopg.conninfo.conninfo_to_dict(dsn)["dbname"],),
                )
                row = await cursor.fetchone()
                assert row is not None
                seen.append((row[0], row[1]))
                await asyncio.sleep(0.01)

    async with Database.open(dsn, max_size=5) as db:
        await set_caps(db, {SCALER: None})
        slots, adoption = Slots(db), Adoption(db)
        await asyncio.gather(watch(), *(provision(slots, adoption, f"a{n}") for n in range(200)))

    assert done == 200
    assert max(connections for connections, _ in seen) <= 5
    assert max(idle for _, idle in seen) == 0


async def test_two_racers_at_most_wait_for_the_admission_lock(own_server: PostgresServer, fallible: Database) -> None:
    """The other connections stay free for those who need no lock."""
    await held(fallible, "a1")
    dsn = own_server.server.dsn(str(await fallible.fetch_value("select current_database()")))
    slots = Slots(fallible)
    async with await psycopg.AsyncConnection.connect(dsn) as holder:
        await holder.execute("select hatchway_lock()")
        waiting = [asyncio.create_task(slots.reserve(reservation(f"b{n}"))) for n in range(10)]

        async def two_wait() -> bool:
            waiting_now = await fallible.fetch_value(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
            )
            return bool(waiting_now == 2)

        await until(two_wait)
        await Adoption(fallible).adopt("a1", "gateway-1", "reg-1")
        await asyncio.gather(*(slots.get("a1") for _ in range(20)))
        assert await two_wait()
        await holder.commit()

    await asyncio.gather(*waiting)
    assert len(await slots.list()) == 11


async def test_the_barrier_of_the_races_holds_its_racers(own_server: PostgresServer, fallible: Database) -> None:
    """What the race tests stand on: nobody passes before all have arrived."""
    await held(fallible, "a1")
    dsn = own_server.server.dsn(str(await fallible.fetch_value("select current_database()")))

    answers = await RowBarrier(dsn).race(["a1"], lambda: [Slots(fallible).request_drain("a1") for _ in range(3)])

    assert answers == [True, True, True]
