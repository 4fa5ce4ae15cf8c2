"""Commands whose server does not answer: exit code 4, soon, with a sentence that names the server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.cli.conftest import Hatchway, clean_environment
from tests.support.pooler import through
from tests.support.proxy import FaultProxy

LIMIT_S = 10.0
REQUEST = '{"labels": ["linux"]}'


@pytest.fixture
def refusing() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["refusing", "silent"])
def away(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize("arguments", [["list"], ["db", "migrate"], ["config", "show"], ["worker"], ["gateway"]])
def test_postgres_away_exits_4_within_ten_seconds(elsewhere: Hatchway, away: str, arguments: list[str]) -> None:
    began = time.monotonic()

    done = elsewhere(*arguments, DATABASE_URL=f"postgresql://user:hunter2@{away}/db")

    assert done.returncode == 4
    assert time.monotonic() - began < LIMIT_S
    assert "Postgres" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("arguments", [["provision", "-"], ["cancel", "provision/job/1"], ["setup"], ["worker"]])
def test_temporal_away_exits_4_within_ten_seconds(
    elsewhere: Hatchway, away: str, arguments: list[str], database_url: str
) -> None:
    began = time.monotonic()

    done = elsewhere(*arguments, stdin=REQUEST, TEMPORAL_ADDRESS=away, DATABASE_URL=database_url)

    assert done.returncode == 4
    assert time.monotonic() - began < LIMIT_S
    assert "Temporal" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_without_temporal_exits_4(elsewhere: Hatchway, refusing: str, database_url: str) -> None:
    done = elsewhere("gateway", "--bind", "127.0.0.1:0", TEMPORAL_ADDRESS=refusing, DATABASE_URL=database_url)

    assert done.returncode == 4
    assert "Temporal" in done.stderr


def test_a_watched_status_outlives_an_outage_of_postgres(database_url: str) -> None:
    """It says that nobody answers, and goes on by itself once somebody does."""
    at = conninfo_to_dict(database_url)
    proxy = FaultProxy((str(at["host"]), int(str(at["port"]))))
    watching = subprocess.Popen(
        [sys.executable, "-m", "hatchway.cli", "status", "--watch", "--json"],
        env=clean_environment({"DATABASE_URL": through(proxy.port, database_url)}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    assert watching.stderr is not None
    try:
        before = json.loads(watching.stdout.readline())
        proxy.cut()
        said = watching.stderr.readline()
        proxy.heal()
        after = json.loads(watching.stdout.readline())
    finally:
        watching.send_signal(signal.SIGINT)
        rest = watching.communicate(timeout=30)[1]
        proxy.close()

    assert "Postgres" in said
    assert "again" in said
    assert before == after
    assert watching.returncode == 130, rest
