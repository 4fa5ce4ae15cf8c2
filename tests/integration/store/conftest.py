"""Every test here runs against both majors that we support: the embedded one, and the oldest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from hatchway.store.pool import Database
from tests.integration.store.factory import SCALER, set_caps
from tests.integration.store.full import fill
from tests.support.pooler import running_pooler, through
from tests.support.postgres_fixtures import PostgresServer, private_directory, running_postgres
from tests.support.services import POSTGRES15_BIN

DURABILITY_OFF = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@pytest.fixture(
    scope="session",
    params=[pytest.param(18, id="pg18"), pytest.param(15, id="pg15", marks=pytest.mark.needs("postgres15"))],
)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    if request.param == 18:
        yield request.getfixturevalue("postgres")
        return
    with running_postgres(bin_dir=POSTGRES15_BIN, settings=DURABILITY_OFF) as oldest:
        yield oldest


@pytest.fixture
def dsn(server: PostgresServer) -> Iterator[str]:
    """A fresh database at the current revision."""
    dsn = server.database()
    yield dsn
    server.drop(dsn)


@pytest.fixture(scope="session")
def pooler_of(server: PostgresServer) -> Iterator[int]:
    """The port of a PgBouncer in front of that server."""
    with private_directory("hatchway-pooler-") as directory, running_pooler(server.dsn, directory) as port:
        yield port


@pytest.fixture(
    params=[
        pytest.param("straight", id="straight"),
        pytest.param("pooled", id="pooled", marks=pytest.mark.needs("pgbouncer")),
    ]
)
def way(request: pytest.FixtureRequest, dsn: str) -> str:
    """The fresh database by each way that a worker may come: straight, or through a transaction pooler."""
    return dsn if request.param == "straight" else through(request.getfixturevalue("pooler_of"), dsn)


@pytest.fixture(scope="module")
async def full_dsn(server: PostgresServer) -> AsyncIterator[str]:
    """A database with very much in it, shared by the tests of one file."""
    dsn = server.database()
    async with Database.open(dsn, max_size=1) as database:
        await fill(database)
    yield dsn
    server.drop(dsn)


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Database]:
    """That database, with one scaler `s1` of three agents."""
    async with Database.open(dsn, max_size=4) as database:
        await set_caps(database, {SCALER: 3})
        yield database
