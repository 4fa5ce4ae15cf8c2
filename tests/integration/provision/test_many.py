"""Many provisions at once: nobody gets another's agent, and nobody waits for a connection that a backend call holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from hatchway.model import ProvisionState
from hatchway.store.pool import Database
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import Cloud, Gate, ScriptedBackend
from tests.support.stack import laptop

S = ProvisionState
MANY = 200


@pytest.fixture
async def narrow(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """A lab whose whole process has five connections."""
    async with Database.open(database_url, max_size=5) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(Cloud()))
        await lab.apply(laptop(maxAgents=MANY, maxConcurrentSpawns=MANY))
        async with control_worker(lab):
            lab.start_host(lab.backend)
            yield lab
            await lab.stop_host("host-1")


@pytest.mark.scenario("S36")
async def test_backend_calls_hold_no_connection(narrow: Lab) -> None:
    """All spawns hang in the backend at once; five connections are still enough for everything else."""
    narrow.backend.after_create = gate = Gate()
    jobs = await asyncio.gather(*(narrow.provision(job_id=f"job-{number}") for number in range(MANY)))
    await until(lambda: len(narrow.cloud.live) >= 100, patience=120)

    in_transaction = await narrow.db.fetch_value(
        "select count(*) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
    )
    row = await narrow.slots.get(jobs[0].agent_id)
    gate.open()

    async def all_spawned() -> bool:
        rows = await narrow.slots.list()
        return len(rows) == MANY and {row.state.value for row in rows} == {"spawned"}

    await until(all_spawned, patience=120)
    assert in_transaction == 0
    assert row is not None
    await asyncio.gather(*(narrow.hatchway.cancel(job.workflow_id) for job in jobs))
    await until(lambda: not narrow.cloud.live, patience=120)
    await narrow.nothing_left()


@pytest.mark.scenario("S26")
async def test_an_agent_is_its_own_jobs_and_no_others(lab: Lab) -> None:
    """Two jobs with the same labels: each adoption hears its own job, and completes that one."""
    first, second = await lab.provision(job_id="job-1"), await lab.provision(job_id="job-2")
    await asyncio.gather(*(lab.reaches(job, S.AWAITING_ADOPTION) for job in (first, second)))

    specs = [await lab.adopt(second, "r-2"), await lab.adopt(first, "r-1")]
    await lab.complete(first, registration="r-1")
    outcome = await lab.outcome(first)

    assert [spec.job_id for spec in specs] == ["job-2", "job-1"]
    assert outcome.agent_id == first.agent_id
    assert (await lab.status(second)).state is S.ACTIVE
    await lab.complete(second, registration="r-2")
    assert (await lab.outcome(second)).agent_id == second.agent_id
    await lab.nothing_left()
