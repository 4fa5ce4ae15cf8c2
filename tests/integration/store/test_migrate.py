"""One migration brings an empty database to the revision that the code needs, once, whoever calls."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from hatchway.errors import SchemaOutdated, StoreUnreachable
from hatchway.store.installation import installation, installation_id, tie_namespace
from hatchway.store.migrate import HEAD, DatabaseUnfit, check_revision, current_revision, migrate
from hatchway.store.pool import Database
from tests.integration.store.factory import TABLES
from tests.support.postgres_fixtures import PostgresServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def empty(server: PostgresServer) -> Iterator[str]:
    dsn = server.empty_database()
    yield dsn
    server.drop(dsn)


def installations(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select installation_id from hatchway_installation").fetchall()


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_many_who_migrate_at_once_make_one_schema(empty: str, isolation: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute(f"alter database {connection.info.dbname} set default_transaction_isolation = '{isolation}'")
    assert current_revision(empty) is None

    command = [sys.executable, "-c", "import sys; from hatchway.store.migrate import migrate; migrate(sys.argv[1])"]
    processes = [subprocess.Popen([*command, empty], cwd=ROOT) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(migrate, [empty] * 3))

    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert current_revision(empty) == HEAD
    with psycopg.connect(empty) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
    assert {t for (t,) in tables} == {*TABLES, "alembic_version"}
    assert len(installations(empty)) == 1


def test_migrating_again_keeps_the_installation(empty: str) -> None:
    migrate(empty)
    before = installations(empty)

    migrate(empty)

    assert installations(empty) == before


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused_with_the_command_for_one_that_can(
    server: PostgresServer, encoding: str
) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database narrow encoding '{encoding}' locale 'C' template template0")
    dsn = server.server.dsn("narrow")
    try:
        for call in (current_revision, migrate):
            with pytest.raises(DatabaseUnfit, match=f"narrow is encoded in {encoding}.*createdb --encoding=UTF8"):
                call(dsn)
    finally:
        server.drop(dsn)


async def test_a_database_without_the_schema_says_the_command_to_run(empty: str) -> None:
    async with Database.open(empty) as db:
        with pytest.raises(SchemaOutdated, match="run `hatchway db migrate`"):
            await check_revision(db)


@pytest.mark.parametrize(("revision", "fine"), [("0000", False), (HEAD, True), ("9999", True)])
async def test_an_older_revision_is_refused_and_a_newer_one_is_fine(db: Database, revision: str, fine: bool) -> None:
    await db.fetch_all("update alembic_version set version_num = %(revision)s", {"revision": revision})

    if fine:
        await check_revision(db)
    else:
        with pytest.raises(SchemaOutdated, match=f"revision {revision}, this code needs {HEAD}"):
            await check_revision(db)


def test_an_unreachable_server_is_told_by_type() -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    for call in (migrate, current_revision):
        with pytest.raises(StoreUnreachable, match="refused"):
            call(nowhere)


async def test_the_installation_is_tied_to_the_first_namespace_only(db: Database) -> None:
    before = await installation(db)

    tied = await tie_namespace(db, "namespace-1")
    other = await tie_namespace(db, "namespace-2")

    assert (before.namespace_uuid, before.tied_at) == (None, None)
    assert tied.namespace_uuid == "namespace-1"
    assert other == tied
    assert await installation_id(db) == str(before.installation_id)


@pytest.mark.parametrize(
    "statement",
    [
        "insert into hatchway_installation default values",
        "insert into scaler_spawning_agents (agent_id, scaler_name, state) values ('a', 's', 'closing')",
        "insert into scaler_spawning_agents (agent_id, scaler_name, state, closing_at)"
        " values ('a', 's', 'active', now())",
        "insert into scaler_spawning_agents (agent_id, scaler_name, state) values ('a', 's', 'asleep')",
        "update scaler_capacity set agents = -1",
        "insert into scaler_spawning_agents (agent_id, scaler_name, state, bound_job_id)"
        " values ('a', 's', 'active', 'j'), ('b', 's', 'reserved', 'j')",
    ],
)
async def test_what_must_never_be_is_refused_by_the_schema(db: Database, statement: str) -> None:
    with pytest.raises(psycopg.errors.IntegrityError):
        await db.fetch_all(statement)
