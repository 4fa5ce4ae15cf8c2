"""What a person hears who looks at a provision whose worker has just been killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from hatchway.model import ProvisionState
from hatchway.store.pool import Database
from tests.support.lab import Lab
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

StartWorker = Callable[[Lab, str], subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(database_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    workers: list[subprocess.Popen[bytes]] = []

    def start(lab: Lab, host: str) -> subprocess.Popen[bytes]:
        address = lab.temporal.service_client.config.target_host
        command = [sys.executable, "-m", "tests.support.lab_worker", address, lab.temporal.namespace, database_url]
        workers.append(subprocess.Popen([*command, str(tmp_path), host], cwd=Path(__file__).parents[3]))
        return workers[-1]

    yield start
    for worker in workers:
        worker.terminate()
        worker.wait()


async def test_a_status_asked_for_while_a_killed_worker_had_the_workflow_task_is_answered(
    namespaces: Namespaces, database_url: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    """The server gives such a task up after 10 s, and the query waits for that."""
    async with Database.open(database_url) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(Cloud()))
        await lab.apply(laptop())
        first = start_worker(lab, "host-1")
        await until((tmp_path / "ready-host-1").exists)
        started = await lab.provision(job_id="job-1")
        await lab.reaches(started, ProvisionState.AWAITING_ADOPTION)
        start_worker(lab, "host-2")  # what the first one has in its cache stays with it
        await until((tmp_path / "ready-host-2").exists)
        async with await psycopg.AsyncConnection[tuple[int]].connect(database_url) as blocker:
            await blocker.execute("lock table scaler_spawning_agents in access exclusive mode")
            adopting = asyncio.create_task(lab.adopt(started))
            await until(lambda: _waits_for_the_lock(blocker), what="the adoption, inside the workflow task")
            first.kill()
            first.wait()

            begun = asyncio.get_running_loop().time()
            status = await lab.status(started)

            assert status.state is ProvisionState.AWAITING_ADOPTION
            assert asyncio.get_running_loop().time() - begun > 5  # or the task was not the killed worker's
        assert (await adopting).agent_id == started.agent_id


async def _waits_for_the_lock(connection: psycopg.AsyncConnection[tuple[int]]) -> bool:
    waiting = await connection.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    row = await waiting.fetchone()
    return row is not None and row[0] > 0
