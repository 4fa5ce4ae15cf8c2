"""A host's schedule comes with its worker and goes with the host; and reclaim on this very machine."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, ScheduleOverlapPolicy
from temporalio.testing import ActivityEnvironment

import worker
from activities.reclaim import ReclaimRetirement
from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.metrics import Metrics
from hatchway.model import ReclaimRequest
from hatchway.namespace import namespace_uuid
from hatchway.polling import is_polled
from hatchway.schedules import delete_reclaim_schedule, look_at_schedules, make_reclaim_schedule, reclaim_of
from hatchway.store.installation import installation_id, retie_namespace, tie_namespace
from hatchway.store.pool import Database
from hatchway.store.reclaiming import Reclaiming
from hatchway.task_queues import CONTROL, host_queue
from hatchway.tie import TiedElsewhere
from tests.contract.backend import destroy, silent
from tests.contract.bare_metal import bare_metal_spec, processes_of
from tests.integration.reclaim.rig import HOST, Home, paused, reclaim
from tests.support.namespaces import PATIENCE, Namespaces, until
from tests.support.stack import Stack, label_set, laptop, running_stack

MACHINE = "m-reclaim"


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str) -> AsyncIterator[Stack]:
    """A worker and a gateway of this machine, whose agents serve until they are drained."""
    config = laptop(labelSets=[label_set("linux")])
    async with running_stack(namespaces, database_url, config, host_id=MACHINE) as running:
        yield running


async def _tied(stack: Stack) -> None:
    await tie_namespace(stack.db, await namespace_uuid(stack.temporal))


async def _made(temporal: Client, host_id: str) -> bool:
    return not next(f for f in await look_at_schedules(temporal, [host_id]) if f.id == reclaim_of(host_id).id).missing


async def test_the_schedule_of_a_host_is_made_by_its_worker_once_the_database_is_tied(stack: Stack) -> None:
    untied = await _made(stack.temporal, MACHINE)
    await _tied(stack)

    await until(lambda: _made(stack.temporal, MACHINE))

    schedule = (await stack.temporal.get_schedule_handle(reclaim_of(MACHINE).id).describe()).schedule
    assert not untied
    assert [interval.every for interval in schedule.spec.intervals] == [timedelta(minutes=5)]
    assert schedule.policy.overlap is ScheduleOverlapPolicy.SKIP


async def test_a_schedule_that_somebody_deletes_is_made_again(
    monkeypatch: pytest.MonkeyPatch, namespaces: Namespaces, database_url: str
) -> None:
    monkeypatch.setattr("hatchway.reclaim_schedules.MAKE_AGAIN_AFTER", 1.0)
    async with running_stack(namespaces, database_url, laptop(), host_id=MACHINE) as stack:
        await _tied(stack)
        await until(lambda: _made(stack.temporal, MACHINE))

        await delete_reclaim_schedule(stack.temporal, MACHINE)

        await until(lambda: _made(stack.temporal, MACHINE))


async def test_a_worker_ends_when_its_database_is_no_longer_this_namespaces(
    monkeypatch: pytest.MonkeyPatch, namespaces: Namespaces, database_url: str, tmp_path: Path
) -> None:
    monkeypatch.setattr("hatchway.reclaim_schedules.LOOK_EVERY", 0.5)
    temporal = await namespaces.take()
    config = tmp_path / "hatchway.yaml"
    config.write_text(json.dumps(laptop()))
    settings = worker.WorkerSettings(database_url=database_url, config=config, state_dir=tmp_path, host_id=MACHINE)
    async with Database.open(database_url) as db:
        await tie_namespace(db, await namespace_uuid(temporal))
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(settings, stop, temporal))
        try:
            await until(lambda: is_polled(temporal, CONTROL), what="the worker polls")

            await retie_namespace(db, str(uuid.uuid4()))

            with pytest.raises(TiedElsewhere, match="another Temporal namespace"):
                await asyncio.wait_for(running, PATIENCE)
        finally:
            stop.set()


async def test_processes_that_nobody_answers_for_are_ended_on_this_machine_and_no_others(stack: Stack) -> None:
    """Orphans of this installation in its own state directory, one of another's there, and an agent at its work."""
    await _tied(stack)
    await paused(stack.temporal, MACHINE)
    busy = await stack.provision(job_id="job-1")
    await until(lambda: list(processes_of(busy.agent_id)), what="the agent's process")
    ours = BareMetalBackend(MACHINE, stack.state_dir, await installation_id(stack.db))
    theirs = BareMetalBackend(MACHINE, stack.state_dir, str(uuid.uuid4()))
    orphans = [f"scaler-{uuid.uuid4().hex}" for _ in range(2)]
    foreign = f"scaler-{uuid.uuid4().hex}"
    for backend, agent_id in [(ours, orphans[0]), (ours, orphans[1]), (theirs, foreign)]:
        await backend.spawn(bare_metal_spec(agent_id, ["sleep", "3600"], {"KICI_AGENT_ID": agent_id}), silent)

    first = await reclaim(stack.temporal, MACHINE)
    standing = [agent_id for agent_id in orphans if list(processes_of(agent_id))]
    second = await reclaim(stack.temporal, MACHINE)
    left = {agent_id for agent_id in (busy.agent_id, *orphans, foreign) if list(processes_of(agent_id))}
    await destroy(theirs, foreign)
    await stack.hatchway.cancel(busy.workflow_id)
    await stack.nothing_left()

    assert first.seen == 3
    assert standing == orphans
    assert sorted(second.reclaimed) == sorted(orphans)
    assert left == {busy.agent_id, foreign}
    for backend in (ours, theirs):
        await backend.close()


def _retirement(home: Home) -> ReclaimRetirement:
    return ReclaimRetirement(Reclaiming(home.lab.db), home.lab.temporal, Metrics.of(home.lab.temporal))


@pytest.mark.parametrize("what_is_there", ["nothing", "a row", "a worker"])
async def test_the_schedule_of_a_host_that_is_gone_is_deleted_unless_something_of_it_is_on_record(
    home: Home, what_is_there: str
) -> None:
    host_id = HOST if what_is_there == "a worker" else "host-gone"
    await until(lambda: is_polled(home.lab.temporal, host_queue(HOST)), what="the host's worker polls")
    await make_reclaim_schedule(home.lab.temporal, host_id)
    if what_is_there == "a row":
        started = await home.at_work(job_id="job-1")
        await home.lab.db.fetch_all("update scaler_spawning_agents set host_id = 'host-gone'")
    retire = _retirement(home).retire

    answer = await ActivityEnvironment().run(retire, ReclaimRequest(host_id=host_id))
    again = await ActivityEnvironment().run(retire, ReclaimRequest(host_id=host_id))

    assert answer.retired is again.retired is (what_is_there == "nothing")
    assert await _made(home.lab.temporal, host_id) is not answer.retired
    if what_is_there == "a row":
        await home.lab.db.fetch_all("update scaler_spawning_agents set host_id = %(host)s", {"host": HOST})
        await home.lab.handle(started).cancel()
        await home.lab.nothing_left()
