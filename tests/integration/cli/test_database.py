"""`hatchway db migrate`, and what the long-running processes say to a database that it has not seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hatchway.store.migrate import HEAD
from tests.integration.cli.conftest import Hatchway
from tests.support.postgres_fixtures import PostgresServer
from tests.support.temporal_fixtures import TemporalServer


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    dsn = postgres.empty_database()
    yield dsn
    postgres.drop(dsn)


def test_an_empty_database_is_migrated_once_and_then_left_alone(elsewhere: Hatchway, empty_database: str) -> None:
    first = elsewhere("db", "migrate", "--json", DATABASE_URL=empty_database)
    second = elsewhere("db", "migrate", "--json", DATABASE_URL=empty_database)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert json.loads(first.stdout) == {"before": None, "after": HEAD}
    assert json.loads(second.stdout) == {"before": HEAD, "after": HEAD}


def test_two_migrations_at_once_both_succeed(elsewhere: Hatchway, empty_database: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: elsewhere("db", "migrate", DATABASE_URL=empty_database), range(2)))

    assert [d.returncode for d in done] == [0, 0], [d.stderr for d in done]


@pytest.mark.parametrize("arguments", [["worker"], ["gateway", "--bind", "127.0.0.1:0"], ["list"]])
def test_a_database_without_our_schema_is_refused_with_the_command_to_run(
    elsewhere: Hatchway, empty_database: str, temporal: TemporalServer, arguments: list[str]
) -> None:
    done = elsewhere(*arguments, DATABASE_URL=empty_database, TEMPORAL_ADDRESS=temporal.address)

    assert done.returncode == 1
    assert "`hatchway db migrate`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_without_any_configuration_says_how_to_give_it_one(
    elsewhere: Hatchway, database_url: str, temporal: TemporalServer
) -> None:
    done = elsewhere("worker", DATABASE_URL=database_url, TEMPORAL_ADDRESS=temporal.address)

    assert done.returncode == 2
    assert "--config FILE" in done.stderr


def test_a_cluster_without_any_configuration_has_none_to_show(elsewhere: Hatchway, database_url: str) -> None:
    done = elsewhere("config", "show", "--json", DATABASE_URL=database_url)

    assert done.returncode == 1
    assert json.loads(done.stderr)["error"] == "no_config"
