"""A real Postgres for a whole run, and a fresh, migrated database for each test.

The schema is migrated once, into a template; a test's database is a copy of it, which takes a tenth of a second.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from hatchway.dev.postgres import EmbeddedPostgres
from hatchway.store.migrate import migrate

TEMPLATE = "hatchway_template"


@contextmanager
def private_directory(prefix: str) -> Iterator[Path]:
    """A directory that the server's own, unprivileged user can reach; pytest's own lie below a 0700 one."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@dataclass
class PostgresServer:
    """A running server, and databases on it."""

    server: EmbeddedPostgres
    _numbers: Iterator[int] = field(default_factory=count)
    _migrated: bool = False

    @property
    def dsn(self) -> str:
        """The maintenance database, as superuser."""
        return self.server.dsn()

    def empty_database(self) -> str:
        """The DSN of a new database without our schema."""
        return self._create("template1")

    def database(self) -> str:
        """The DSN of a new database at the current revision."""
        if not self._migrated:
            migrate(self.server.createdb(TEMPLATE))
            self._migrated = True
        dsn = self._create(TEMPLATE)
        # A copy is an installation of its own: what one test leaves on a host must not look like another's.
        with psycopg.connect(dsn) as connection:
            connection.execute("update hatchway_installation set installation_id = gen_random_uuid()")
        return dsn

    def drop(self, dsn: str) -> None:
        """Drop a database that `database` or `empty_database` made, also when sessions are still on it."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(str(name))))

    def _create(self, template: str) -> str:
        name = f"t{next(self._numbers)}"
        statement = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)
        return self.server.dsn(name)


@contextmanager
def running_postgres(bin_dir: Path | None = None, settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server of the embedded major, or of `bin_dir`. `settings` are lines of postgresql.conf."""
    with (
        private_directory("hatchway-postgres-") as directory,
        EmbeddedPostgres(directory, bin_dir=bin_dir, settings=settings) as server,
    ):
        yield PostgresServer(server)


def set_isolation(dsn: str, isolation: str) -> None:
    """What a transaction of this database is when it does not say: of every session that connects from now on."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        statement = sql.SQL("alter database {} set default_transaction_isolation = {}")
        connection.execute(statement.format(sql.Identifier(connection.info.dbname), sql.Literal(isolation)))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The run's server: the embedded Postgres, with durability off, for no test of it survives the run."""
    with running_postgres(settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}) as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """A fresh database at the current revision, dropped after the test."""
    dsn = postgres.database()
    yield dsn
    postgres.drop(dsn)


@pytest.fixture(scope="module")
def module_database_url(postgres: PostgresServer) -> Iterator[str]:
    """The same, shared by the tests of one file."""
    dsn = postgres.database()
    yield dsn
    postgres.drop(dsn)


@pytest.fixture
def fresh_database(postgres: PostgresServer) -> Iterator[Callable[[], str]]:
    """Makes as many migrated databases as a test asks for; all are dropped after it."""
    made: list[str] = []

    def make() -> str:
        made.append(postgres.database())
        return made[-1]

    yield make
    for dsn in made:
        postgres.drop(dsn)
