"""Postgres restored from a backup of ten minutes ago, while Temporal and the hosts know of everything since."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import psycopg
import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState, SweepOutcome
from tests.integration.reap.facts import gateway, quick, state_of
from tests.integration.reclaim.rig import Home
from tests.support.namespaces import until
from tests.support.postgres_fixtures import PostgresServer

S = ProvisionState

TEN_MINUTES_AGO = """
    update scaler_agent_presence set last_seen_at = last_seen_at - interval '10 minutes';
    update scaler_instances set last_seen_at = least(last_seen_at, now()) - interval '10 minutes';
    update scaler_spawning_agents
       set spawned_at = spawned_at - interval '10 minutes', adopted_at = adopted_at - interval '10 minutes',
           deadline_at = deadline_at - interval '10 minutes', closing_at = closing_at - interval '10 minutes';
"""
"""What a backup of ten minutes ago says of every time, done to one that was made a moment ago."""


@dataclass
class Backup:
    """By the commands that the documentation names."""

    postgres: PostgresServer
    dsn: str
    dump: bytes = b""

    def make(self) -> None:
        self.dump = self._run("pg_dump", "--format", "custom", given=b"")

    def restore(self) -> None:
        """Into the same database, in one transaction. Afterwards its times are those of ten minutes ago."""
        self._run("pg_restore", "--clean", "--if-exists", "--single-transaction", "--exit-on-error", given=self.dump)
        with psycopg.connect(self.dsn) as connection:
            connection.execute(TEN_MINUTES_AGO)

    def _run(self, program: str, *arguments: str, given: bytes) -> bytes:
        command = [str(self.postgres.server.bin_dir / program), *arguments, "--dbname", self.dsn]
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


@pytest.fixture
def backup(postgres: PostgresServer, database_url: str) -> Backup:
    return Backup(postgres, database_url)


async def _swept(home: Home) -> SweepOutcome:
    swept = await home.lab.sweep()
    assert swept.failed == {}
    return swept


async def _beats(home: Home, *agents: Started) -> None:
    """These agents, whose tokens are in the backup, are heard of by the gateway that came back."""
    await home.lab.db.fetch_all(
        "update scaler_agent_presence set last_seen_at = now() where agent_id = any (%(agents)s)",
        {"agents": [agent.agent_id for agent in agents]},
    )


async def test_after_a_restored_backup_nothing_leaks_and_no_busy_agent_is_ended_that_still_has_a_token(
    home: Home, backup: Backup
) -> None:
    lab = home.lab
    # before the backup
    stays = await home.at_work(job_id="stays")
    ends_since = await home.at_work(job_id="ends-since")
    released_since = await home.at_work()
    backup.make()
    # since the backup
    await lab.complete(ends_since)
    await lab.outcome(ends_since)
    await lab.release(released_since, now=True)
    await lab.outcome(released_since)
    begins_since = await home.at_work(job_id="begins-since")
    comes_and_goes = await home.at_work(job_id="comes-and-goes")
    await lab.complete(comes_and_goes)
    await lab.outcome(comes_and_goes)

    backup.restore()
    ghosts = {row.agent_id for row in await lab.slots.list()}
    blind = await _swept(home)  # no gateway has come back yet: nobody is judged by a silence that none could hear
    await gateway(lab.db)
    await _beats(home, stays)
    passes = [await home.reclaim(), await home.reclaim()]
    sweeps = [await _swept(home), await _swept(home)]

    # rows that ended since are closed; the row that began since is back; who stays was not touched
    assert ghosts == {stays.agent_id, ends_since.agent_id, released_since.agent_id}
    assert blind.steps["reap"].done["condemned"] == 0
    assert [outcome.restored for outcome in passes] == [[begins_since.agent_id], []]
    assert [outcome.reclaimed for outcome in passes] == [[], []]
    assert sum(sweep.steps["reap"].done["condemned"] for sweep in sweeps) == 2
    await until(lambda: _holders(home, {stays.agent_id, begins_since.agent_id}), what="the two that are at work")
    assert set(home.cloud.live) == {stays.agent_id, begins_since.agent_id}
    assert not {stays.agent_id, begins_since.agent_id} & set(home.cloud.asked_for())
    counted = await lab.db.fetch_value("select agents from scaler_capacity where scope = 'global'")
    assert counted == 2
    # what a served job was is still known to Temporal: it is not served again
    again = await lab.provision(job_id="ends-since")
    assert again.agent_id == ends_since.agent_id
    # who has lost its token with its row ends by itself, and its job may be offered again
    await lab.exits(begins_since)
    assert (await lab.failure(begins_since)).error_type == ErrorType.AGENT_LOST
    second = await home.at_work(job_id="begins-since")
    for served in (stays, second):
        await lab.complete(served)
        assert (await lab.outcome(served)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()


async def _holders(home: Home, wanted: set[str]) -> bool:
    return {row.agent_id for row in await home.lab.slots.list()} == wanted


async def test_an_agent_that_registered_since_the_backup_is_given_up_and_leaves_nothing(
    home: Home, backup: Backup
) -> None:
    """Its row is there and knows neither its token nor its registration: it was told to stop, and its job may be
    offered again.
    """
    started = await home.lab.provision(job_id="job-1")
    await home.lab.reaches(started, S.AWAITING_ADOPTION)
    backup.make()
    await home.lab.adopt(started)
    await home.lab.reaches(started, S.ACTIVE)

    backup.restore()
    await gateway(home.lab.db)
    before = await state_of(home.lab, started)
    swept = await _swept(home)

    assert before == "spawned"
    assert swept.steps["reap"].done["condemned"] == 1
    with pytest.raises(ProvisionFailed):
        await home.lab.outcome(started)
    await home.lab.nothing_left()
    await home.lab.db.fetch_all("delete from scaler_failures")  # it counts as an agent that never registered
    second = await home.at_work(job_id="job-1")
    await home.lab.complete(second)
    assert (await home.lab.outcome(second)).end_reason is EndReason.COMPLETED
    await home.lab.nothing_left()


async def test_a_place_in_the_line_that_was_taken_since_is_lost_and_its_job_ends_cleanly(
    home: Home, backup: Backup
) -> None:
    """Nobody signals it any more: it ends with its wait_timeout, or when it is cancelled and offered again."""
    await home.lab.apply(quick(maxAgents=1, stopGraceSeconds=0))
    holder = await home.at_work(job_id="holder")
    backup.make()
    waiting = await home.lab.provision(job_id="waiting")
    await home.lab.reaches(waiting, S.QUEUED)

    backup.restore()
    await gateway(home.lab.db)
    await _beats(home, holder)
    await home.lab.complete(holder)
    await home.lab.outcome(holder)
    await _swept(home)

    line = await home.lab.db.fetch_all("select agent_id from scaler_waiters")
    assert line == [], "the backup knows of no waiter"
    await home.lab.hatchway.cancel(waiting.workflow_id, "it would wait for its whole wait_timeout")
    with pytest.raises(ProvisionFailed):
        await home.lab.outcome(waiting)
    await home.lab.nothing_left()
