"""Everything that speaks to Postgres does so through PgBouncer in transaction mode: migrate, worker, gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from hatchway.model import EndReason
from hatchway.store.migrate import HEAD, current_revision, migrate
from tests.support.namespaces import Namespaces
from tests.support.pooler import SERVER_CONNECTIONS, through
from tests.support.postgres_fixtures import PostgresServer, set_isolation
from tests.support.stack import label_set, laptop, running_stack

JOBS = 12


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[str]:
    dsn = postgres.empty_database()
    yield dsn
    postgres.drop(dsn)


def test_a_database_is_migrated_through_the_pooler(empty: str, pooler: int) -> None:
    way = through(pooler, empty)

    migrate(way)

    assert current_revision(way) == HEAD


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_jobs_are_served_from_end_to_end_through_the_pooler(
    namespaces: Namespaces, database_url: str, pooler: int, isolation: str
) -> None:
    set_isolation(database_url, isolation)
    config = laptop(maxAgents=3, labelSets=[label_set("linux", "true")])
    async with running_stack(namespaces, through(pooler, database_url), config) as stack:
        started = [await stack.provision(job_id=f"job-{n}", run_id="run") for n in range(JOBS)]

        outcomes = await asyncio.gather(*(stack.hatchway.outcome(one) for one in started))

        assert {outcome.end_reason for outcome in outcomes} == {EndReason.COMPLETED}
        await stack.nothing_left()


def test_the_pooler_of_these_tests_gives_each_statement_another_session(database_url: str, pooler: int) -> None:
    """The tests above can fail: what a session is told does not hold for its next statement."""
    way = through(pooler, database_url)
    with psycopg.connect(way, autocommit=True) as one, psycopg.connect(way, autocommit=True) as other:
        one.execute("set lock_timeout = '77s'")

        assert other.execute("show lock_timeout").fetchone() == ("77s",)
    assert SERVER_CONNECTIONS > 1
