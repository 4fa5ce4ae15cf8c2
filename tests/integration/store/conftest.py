"""Every test here runs against both majors that we support: the embedded one, and the oldest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from hatchway.store.pool import Database
from tests.integration.store.factory import SCALER, set_caps
from tests.support.postgres_fixtures import PostgresServer, running_postgres
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


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Database]:
    """That database, with one scaler `s1` of three agents."""
    async with Database.open(dsn, max_size=4) as database:
        await set_caps(database, {SCALER: 3})
        yield database
