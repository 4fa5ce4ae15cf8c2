"""A worker is killed while a job gets its warm agent: the job has that agent afterwards, and nobody else has."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from hatchway.model import EndReason
from hatchway.store.pool import Database
from tests.support.lab import Lab
from tests.support.lab_worker import DiskCloud, Fleet
from tests.support.namespaces import Namespaces, until
from tests.support.pools import filled, pooled
from tests.support.scripted import ScriptedBackend

STEPS = ["before_bind", "after_bind"]


async def test_a_worker_killed_between_take_and_bind_costs_neither_the_job_nor_the_agent(
    namespaces: Namespaces, fresh_database: Callable[[], str], tmp_path: Path
) -> None:
    await asyncio.gather(*(_killed_at(step, namespaces, fresh_database(), tmp_path / step) for step in STEPS))


async def _killed_at(step: str, namespaces: Namespaces, dsn: str, directory: Path) -> None:
    directory.mkdir()
    async with Database.open(dsn) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(DiskCloud(directory)))
        await lab.apply(pooled(size=1))
        fleet = Fleet(lab, dsn, directory)
        try:
            doomed = await fleet.start("host-1", step)
            (warm,) = await filled(lab)
            started = await lab.provision(job_id="job-1", run_id="run-1")
            await until((directory / f"reached-{step}").exists)
            row = await lab.slots.get(warm.agent_id)
            assert row is not None
            assert row.bound_job_id == "job-1", step  # taken

            os.kill(doomed.pid, signal.SIGKILL)
            await doomed.wait()
            await fleet.start("host-1")

            spec = await lab.hatchway.wait_adopted(started)
            assert (spec.agent_id, spec.job_id) == (warm.agent_id, "job-1"), step
            await lab.complete(warm)
            assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED, step
            assert [effect for effect in fleet.effects("created") if effect[1] == started.agent_id] == [], step
            await until(lambda: fleet.effects("removed") == [["removed", warm.agent_id, "host-1"]])
        finally:
            await fleet.stop()
