"""Bringing a database to the revision that this code needs, and checking that it is there."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from hatchway.errors import HatchwayError, SchemaOutdated, StoreUnreachable
from hatchway.store.pool import CONNECTION_OPTIONS, Database, translated

HEAD = "0001"
"""The newest revision under `migrations/versions`: a constant, so that no worker imports Alembic; a test compares."""

ENCODING = "UTF8"


class DatabaseUnfit(HatchwayError):
    """This database can never hold our schema. Says how to make one that can."""


_ONE_AT_A_TIME = threading.Lock()
"""Alembic keeps the running migration's environment in module globals: two threads would mix theirs up."""


def migrate(dsn: str) -> None:
    """Bring the database to HEAD; nothing to do is fine. Blocking: call it in a thread from async code.

    Safe to run from several places at once. Raises StoreUnreachable, DatabaseUnfit.
    """
    # Only the migrating command needs these two, and they take longer to import than a query takes.
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connect(dsn),
        poolclass=NullPool,
        # The check "is it there already" must see what whoever held the lock before us has committed.
        isolation_level="READ COMMITTED",
    )
    with _ONE_AT_A_TIME, engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def current_revision(dsn: str) -> str | None:
    """The database's revision, or None when it has none of our tables. Blocking.

    Raises StoreUnreachable, DatabaseUnfit.
    """
    with _connect(dsn) as connection:
        found = connection.execute("select to_regclass('public.alembic_version')").fetchone()
        if found is None or found[0] is None:
            return None
        row = connection.execute("select version_num from public.alembic_version").fetchone()
        return None if row is None else str(row[0])


async def check_revision(db: Database) -> None:
    """Raise SchemaOutdated unless the database has at least the revision that this code needs.

    A newer one is fine: migrations keep the previous release working. Needs EXECUTE on one function only.
    """
    known = await db.fetch_value("select to_regproc('public.hatchway_revision') is not null")
    revision = await db.fetch_value("select public.hatchway_revision()") if known else None
    if revision is None:
        raise SchemaOutdated("this database has no Hatchway schema yet: run `hatchway db migrate`")
    if str(revision) < HEAD:
        raise SchemaOutdated(
            f"the database is at revision {revision}, this code needs {HEAD}: run `hatchway db migrate`"
        )


def _connect(dsn: str) -> psycopg.Connection:
    try:
        connection = psycopg.connect(dsn, **CONNECTION_OPTIONS)
    except psycopg.OperationalError as error:
        raise translated(error) or StoreUnreachable(f"Postgres did not answer: {error}") from error
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != ENCODING:
        # In SQL_ASCII the driver hands every text over as bytes; in the others JSON with an escape for a character
        # that they lack is an error.
        name = connection.info.dbname
        connection.close()
        raise DatabaseUnfit(
            f"the database {name} is encoded in {encoding}, and Hatchway's must be in {ENCODING}: make one with "
            f"`createdb --encoding={ENCODING} --template=template0 NAME`, and let DATABASE_URL name it"
        )
    return connection
