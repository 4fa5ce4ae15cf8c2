"""What may change under a provision while it is on its way: the lock is taken, its row goes, its configuration goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from hatchway.client import ProvisionFailed
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import label_set, laptop

S = ProvisionState


@asynccontextmanager
async def _admission_locked(database_url: str) -> AsyncIterator[None]:
    async with await psycopg.AsyncConnection.connect(database_url) as other:
        await other.execute("select pg_advisory_xact_lock(hashtextextended('hatchway:admission', 0))")
        yield


@pytest.mark.parametrize("beyond", [False, True], ids=["within the first try", "beyond it"])
async def test_a_cancel_while_the_reserve_waits_for_the_lock_holds_nothing(
    lab: Lab, database_url: str, beyond: bool
) -> None:
    async def heard() -> bool:
        """The first try has run into its limit, and its workflow task has ended, with the cancel before the next."""
        events = [event async for event in lab.handle(started).fetch_history_events()]
        names = {event.activity_task_scheduled_event_attributes.activity_type.name for event in events}
        cancels = [e for e in events if e.HasField("workflow_execution_cancel_requested_event_attributes")]
        return "reserve" in names and bool(cancels)

    async with _admission_locked(database_url):
        started = await lab.provision(job_id="job-1")
        await asyncio.sleep(0.5)
        await lab.hatchway.cancel(started.workflow_id)
        if beyond:
            await until(heard)
        else:
            await asyncio.sleep(0.5)

    with pytest.raises(ProvisionFailed) as ended:
        await lab.outcome(started)

    assert ended.value.cancelled
    if beyond:
        # Within the first try the reserve is part of the workflow task: a cancel is heard only after it, when the spawn
        # has been asked for already, and calls that off.
        assert lab.cloud.log == []
    assert lab.cloud.created(started.agent_id) <= 1
    await lab.nothing_left()


@pytest.mark.parametrize("finishes", [True, False], ids=["completed", "cancelled"])
async def test_a_provision_whose_row_has_gone_still_takes_its_compute_down(lab: Lab, finishes: bool) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.db.fetch_all("delete from scaler_spawning_agents")

    if finishes:
        await lab.release(started, EndReason.COMPLETED)
        await lab.outcome(started)
    else:
        await lab.hatchway.cancel(started.workflow_id)
        with pytest.raises(ProvisionFailed):
            await lab.outcome(started)

    await lab.nothing_left()


async def test_a_row_that_goes_during_the_spawn_leaves_no_compute(lab: Lab) -> None:
    lab.backend.after_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    await lab.db.fetch_all("delete from scaler_spawning_agents")

    gate.open()

    assert (await lab.failure(started)).error_type == ErrorType.SPAWN_FAILED
    await lab.nothing_left()


async def test_a_provision_keeps_the_configuration_that_it_was_reserved_under(lab: Lab) -> None:
    """Its scaler's label set is gone from the next version, before its spawn has read it."""
    lab.backend.before_create = gate = Gate()
    started = await lab.provision(job_id="job-1")
    await gate.reached.wait()
    await lab.apply(laptop(labelSets=[label_set("other")]))

    gate.open()
    await lab.reaches(started, S.AWAITING_ADOPTION)
    spec = await lab.adopt(started)
    await lab.complete(started)

    assert "linux" in spec.labels
    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    await lab.nothing_left()
