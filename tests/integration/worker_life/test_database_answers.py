"""Whatever the database answers, a worker stays, says it, and goes on by itself when the answer is another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
import structlog
from structlog.testing import capture_logs

import worker
from hatchway import former_scalers, reclaim_schedules
from hatchway.client import Started
from hatchway.model import EndReason, ProvisionState
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, label_set, laptop, running_stack

READ_ONLY, NO_ROOM, STATEMENT_TIMEOUT, NO_PRIVILEGE, NO_FUNCTION = "25006", "53100", "57014", "42501", "42883"
ANSWERS = pytest.mark.parametrize("sqlstate", [READ_ONLY, NO_ROOM, STATEMENT_TIMEOUT, NO_PRIVILEGE, NO_FUNCTION])


CONFIG = laptop(
    labelSets=[label_set("linux", "true"), label_set("long", "/bin/sh", "-c", "sleep 600")], stopGraceSeconds=0
)


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    """With a worker whose loops are quick. It fails the test at its end if the worker had ended by itself."""
    monkeypatch.setattr(worker, "INSTANCE_BEAT_EVERY", 0.1)
    monkeypatch.setattr(reclaim_schedules, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(reclaim_schedules, "PAUSE", 0.1)
    monkeypatch.setattr(former_scalers, "LOOK_EVERY", 0.1)
    async with running_stack(namespaces, database_url, CONFIG) as running:
        await until(lambda: _beats_since(running, timedelta(0)), what="a first heartbeat")
        yield running


async def _beats_since(stack: Stack, ago: timedelta) -> bool:
    return bool(
        await stack.db.fetch_value(
            "select count(*) from scaler_instances where kind = 'worker' and last_seen_at > now() - %s",
            [ago or timedelta(hours=1)],
        )
    )


class Broken:
    """Tables that answer with an error of this code, until they are mended."""

    def __init__(self, dsn: str, sqlstate: str) -> None:
        self._dsn = dsn
        self._sqlstate = sqlstate

    def writes_to(self, table: str) -> None:
        self._run(
            f"""
            create function pg_temp_raise() returns trigger language plpgsql as
            $$ begin raise exception 'by test' using errcode = '{self._sqlstate}'; end $$;
            create trigger broken before insert or update on {table} execute function pg_temp_raise();
            """
        )

    def reads_of(self, table: str) -> None:
        self._run(
            f"""
            create function raise_on_read() returns boolean language plpgsql as
            $$ begin raise exception 'by test' using errcode = '{self._sqlstate}'; end $$;
            alter table {table} rename to broken_{table};
            create view {table} as select * from broken_{table} where raise_on_read();
            """  # noqa: S608 - names of this file
        )

    def writes_mended(self, table: str) -> None:
        self._run(f"drop trigger broken on {table}")

    def reads_mended(self, table: str) -> None:
        self._run(f"drop view {table}; alter table broken_{table} rename to {table};")

    def _run(self, statements: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statements.encode())


async def _at_work(stack: Stack) -> Started:
    started = await stack.provision(labels=["long"], job_id="job-1")
    await stack.reaches(started, ProvisionState.ACTIVE)
    return started


async def _torn_down(stack: Stack, running: Started) -> None:
    await stack.hatchway.cancel(running.workflow_id, "by test")
    await stack.nothing_left()


@ANSWERS
async def test_a_heartbeat_that_the_database_refuses_is_said_once_and_ends_no_worker(
    stack: Stack, sqlstate: str
) -> None:
    started = await _at_work(stack)
    broken = Broken(stack.database_url, sqlstate)
    with capture_logs() as logged:
        broken.writes_to("scaler_instances")
        await until(lambda: [entry for entry in logged if _of_a_beat(entry)], what="the refusal in the log")
        await _torn_down(stack, started)
        broken.writes_mended("scaler_instances")

        await until(lambda: _beats_since(stack, timedelta(seconds=0.5)), what="a heartbeat")

    said = [entry for entry in logged if _of_a_beat(entry)]
    assert len(said) == len({entry["error"] for entry in said})
    assert "by test" in said[0]["error"]
    assert said[0]["log_level"] == ("error" if sqlstate.startswith("42") else "warning")


def _of_a_beat(entry: structlog.typing.EventDict) -> bool:
    return "heartbeat" in entry["event"] and entry["event"].startswith("the instance")


@ANSWERS
async def test_a_configuration_that_cannot_be_read_is_said_and_what_runs_goes_on(stack: Stack, sqlstate: str) -> None:
    started = await _at_work(stack)
    broken = Broken(stack.database_url, sqlstate)
    with capture_logs() as logged:
        broken.reads_of("scaler_config_versions")
        await until(
            lambda: [entry for entry in logged if "configuration cannot be read" in entry["event"]],
            what="the trouble in the log",
        )
        await _torn_down(stack, started)
        broken.reads_mended("scaler_config_versions")
    await until(lambda: _reads(stack))

    again = await stack.provision(job_id="job-2")

    assert (await stack.hatchway.outcome(again)).end_reason is EndReason.COMPLETED
    await stack.nothing_left()


async def _reads(stack: Stack) -> bool:
    return bool(await stack.db.fetch_value("select count(*) from scaler_config_versions"))


@ANSWERS
@pytest.mark.parametrize("table", ["scaler_spawning_agents", "hatchway_installation"])
async def test_no_other_look_of_a_worker_at_the_database_ends_it(stack: Stack, table: str, sqlstate: str) -> None:
    """The looks for hosts of former scalers, and at whose database it is."""
    words = {
        "scaler_spawning_agents": "hosts of former scalers cannot be read",
        "hatchway_installation": "reclaim schedules cannot be looked after",
    }[table]
    started = await _at_work(stack)
    await stack.apply({**CONFIG, "globalMaxAgents": 9})  # by which its row is of a former one, and looked for
    broken = Broken(stack.database_url, sqlstate)
    with capture_logs() as logged:
        broken.reads_of(table)
        await until(lambda: [entry for entry in logged if words in entry["event"]], what="the trouble in the log")
        broken.reads_mended(table)

    await _torn_down(stack, started)
