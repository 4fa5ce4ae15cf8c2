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
UNDER_WAY = 100
MOST_EVENTS_BEFORE_ADOPTION = 25


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
@pytest.mark.timeout(600)
async def test_backend_calls_hold_no_connection(narrow: Lab) -> None:
    """All spawns hang in the backend at once; five connections are still enough for everything else."""
    narrow.backend.after_create = gate = Gate()
    jobs = await asyncio.gather(*(narrow.provision(job_id=f"job-{number}") for number in range(MANY)))
    await until(lambda: len(narrow.cloud.live) >= 100, patience=120)

    in_transaction = await narrow.db.fetch_value(
        "select count(*) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
    )
    row = await narrow.slots.get(next(iter(narrow.cloud.live)))  # the job that was started first need not be there yet
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


@pytest.mark.scenario("S21")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unhurried")
async def test_a_restart_with_a_hundred_under_way_spawns_nobody_again_and_repeats_no_step(
    namespaces: Namespaces, database_url: str
) -> None:
    async with Database.open(database_url) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(Cloud()))
        await lab.apply(laptop(maxAgents=UNDER_WAY, maxConcurrentSpawns=UNDER_WAY))
        async with control_worker(lab):
            lab.start_host(lab.backend)
            jobs = [await lab.provision(job_id=f"job-{number}") for number in range(UNDER_WAY)]
            await until(lambda: len(lab.cloud.live) == UNDER_WAY, patience=120)
            for job in jobs:
                await lab.reaches(job, S.AWAITING_ADOPTION)
        await lab.stop_host(lab.backend.host_id)
        before = await _versions(lab)

        async with control_worker(lab):
            lab.start_host(lab.backend)
            for job in jobs:  # each is loaded again by whoever asks it something
                assert (await lab.status(job)).state is S.AWAITING_ADOPTION
            grown = [(await lab.handle(job).describe()).history_length for job in jobs]

            assert await _versions(lab) == before
            for job in jobs:
                await lab.adopt(job)
                await lab.complete(job)
            await asyncio.gather(*(lab.outcome(job) for job in jobs))
            await lab.nothing_left()
            await lab.stop_host(lab.backend.host_id)

    assert [what for what, _, _ in lab.cloud.log].count("created") == UNDER_WAY
    assert "found" not in {what for what, _, _ in lab.cloud.log}
    assert max(grown) <= MOST_EVENTS_BEFORE_ADOPTION


async def _versions(lab: Lab) -> dict[str, int]:
    """How often each row was written."""
    return {row.agent_id: row.state_version for row in await lab.slots.list()}
