"""Who gives way when a job and its warm agent miss each other: places kept, nothing given back that may still run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb
from temporalio.testing import ActivityEnvironment

from activities.sweep import SweepActivities
from hatchway.model import EndReason, ProvisionState, SweepRequest
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.reservations import Candidate, Held, Reservation, Waiting, Warm
from hatchway.store.rows import SpawnRow, Wake
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from hatchway.store.warm import WarmAgents
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.pools import filled, pooled, started_of, taken, warm_rows

S = ProvisionState
KEY = "as-it-is-made-now"
MINUTE = timedelta(minutes=1)


def _reservation(agent_id: str, *, job_id: str | None = None, target: int | None = None) -> Reservation:
    candidate = Candidate(
        scaler="laptop", mcpu=1000, mem_bytes=2**30, label_set=["linux"], mandatory_labels=[],
        backend_type="bare-metal", provisioning_targets=[], roles=[],
        takes_warm=KEY if job_id else None, made_warm=None if job_id else KEY,
    )  # fmt: skip
    return Reservation(
        agent_id=agent_id, workflow_id=f"provision/{agent_id}", workflow_first_run_id=agent_id, job_id=job_id,
        run_id=None, priority=3, wait=job_id is not None, candidates=[candidate], config_version=1,
        owner_instance_id="test", reserved_for=MINUTE, wait_timeout=MINUTE, warm_target=target,
    )  # fmt: skip


async def _made(lab: Lab, agent_id: str) -> None:
    assert isinstance(await Slots(lab.db).reserve(_reservation(agent_id, target=1)), Held)


async def _registers(lab: Lab, agent_id: str) -> None:
    assert isinstance(await Adoption(lab.db).adopt(agent_id, "gateway-1", "r-1"), Adopted)


async def test_a_job_whose_offered_agent_died_is_still_before_those_behind_it(lab: Lab) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    await lab.db.fetch_all("update scaler_capacity set max_agents = 1 where scaler_name = 'laptop'")
    await _made(lab, "warm-1")
    for job in ("first", "second"):
        assert isinstance(await slots.reserve(_reservation(job, job_id=job)), Waiting)
    waited_since = {w.agent_id: w.age for w in await Line(lab.db).list()}
    await _registers(lab, "warm-1")
    assert [w.agent_id for w in await warm.offer(["laptop"])] == ["first"]
    await Adoption(lab.db).close("warm-1", "compute-exited", only_unadopted=False)

    assert (await warm.give_back("first")).bound is None
    again = await slots.reserve(_reservation("first", job_id="first"))

    assert isinstance(again, Waiting)
    line = await Line(lab.db).list()
    assert [w.agent_id for w in line] == ["first", "second"]
    assert line[0].age >= waited_since["first"]


@pytest.mark.parametrize("how", ["drained", "left the configuration"])
async def test_an_agent_that_gets_ready_where_nobody_is_admitted_is_offered_to_nobody(lab: Lab, how: str) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    await lab.db.fetch_all("update scaler_capacity set max_agents = 1 where scaler_name = 'laptop'")
    await _made(lab, "warm-1")
    assert isinstance(await slots.reserve(_reservation("first", job_id="first")), Waiting)
    if how == "drained":
        await Line(lab.db).accept("laptop", False)
    else:
        await lab.apply(pooled(size=0, name="another"))
    await _registers(lab, "warm-1")

    assert await warm.offer(["laptop"]) == []


async def test_an_agent_that_completed_as_it_was_bound_does_not_get_the_job(lab: Lab, database_url: str) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    await _made(lab, "warm-1")
    await _registers(lab, "warm-1")
    assert isinstance(await slots.reserve(_reservation("taker", job_id="job-1")), Warm)
    async with await psycopg.AsyncConnection.connect(database_url) as other:
        await other.execute(
            "select hatchway_complete(%s)",
            [Jsonb({"agent_id": "warm-1", "registration_id": "r-1", "result": "succeeded", "exit_code": 0})],
        )
        binding = asyncio.create_task(warm.bind("warm-1", "job-1"))

        async def waits() -> bool:
            return bool(await lab.db.fetch_value("select count(*) from pg_locks where not granted"))

        await until(waits)
        await other.commit()

    assert await binding is None


class StaleLine(Line):
    """Names a waiter that has got its slot since the sweep looked."""

    async def overdue(self, grace: timedelta, limit: int = 100) -> list[Wake]:
        return [Wake("provision/first", "first", "first")]


async def test_a_sweep_that_comes_too_late_for_a_waiter_leaves_the_slot_that_it_has_taken_up(lab: Lab) -> None:
    """Its workflow has handed a teardown over and ended: its compute may run still, and counts."""
    slots = Slots(lab.db)
    assert isinstance(await slots.reserve(_reservation("first", job_id="first")), Held)
    sweep = SweepActivities(StaleLine(lab.db), slots, lab.temporal, lab.metrics)

    await ActivityEnvironment().run(sweep.line, SweepRequest())

    assert await slots.get("first") is not None


async def test_a_waiter_whose_workflow_is_gone_leaves_the_line_when_it_is_given_an_agent(lab: Lab) -> None:
    slots, warm = Slots(lab.db), WarmAgents(lab.db)
    await lab.db.fetch_all("update scaler_capacity set max_agents = 1 where scaler_name = 'laptop'")
    await _made(lab, "warm-1")
    for job in ("first", "second"):
        assert isinstance(await slots.reserve(_reservation(job, job_id=job)), Waiting)
    await _registers(lab, "warm-1")
    assert [w.agent_id for w in await warm.offer(["laptop"])] == ["first"]

    returned = await slots.returned("first")

    assert returned.existed
    assert [w.agent_id for w in returned.wake] == ["second"]
    assert await Line(lab.db).list() == []


async def test_a_bind_that_comes_before_its_own_workflow_knows_of_the_adoption_stands(lab: Lab) -> None:
    await lab.sweep()

    async def there() -> list[SpawnRow]:
        return await warm_rows(lab)

    [row] = await until(there)
    warm = started_of(row)
    await lab.reaches(warm, S.AWAITING_ADOPTION)
    assert isinstance(await Adoption(lab.db).adopt(warm.agent_id, "gateway-1", "r-1"), Adopted)
    job = await taken(lab, "job-1")

    await lab.adopt(warm)

    status = await lab.status(warm)
    assert "job-1" in status.waiting_for
    await lab.complete(warm)
    outcome = await lab.outcome(job)
    assert outcome.agent_id == warm.agent_id


async def test_a_follower_that_is_reset_after_a_release_still_follows(lab: Lab) -> None:
    [warm] = await filled(lab)
    job = await taken(lab, "job-1")
    await lab.release(job, EndReason.RELEASED)

    async def asked() -> bool:
        row = await lab.slots.get(warm.agent_id)
        return row is not None and row.drain_requested

    await until(asked)

    again = await lab.reset(job, to_start=True)
    await lab.complete(warm)

    outcome = await lab.outcome(again)
    assert outcome.end_reason is EndReason.COMPLETED
