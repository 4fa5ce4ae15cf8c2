"""The line while caps move, workers are away and many wait: nobody is lost, nobody is passed over. Nothing sweeps."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from hatchway.client import Started
from hatchway.model import ProvisionState
from hatchway.store.waiters import Line
from tests.support.lab import SCALER, Lab, control_worker
from tests.support.namespaces import until
from tests.support.scripted import ScriptedBackend
from tests.support.stack import label_set, laptop

S = ProvisionState


async def _serve(lab: Lab, started: Started, seconds: float = 0.0) -> None:
    """Be its agent, from its registration to its completion."""
    await until(lambda: lab.cloud.created(started.agent_id))
    await _work(lab, started, seconds)


async def _work(lab: Lab, started: Started, seconds: float) -> None:
    await lab.adopt(started)
    await asyncio.sleep(seconds)  # the work itself
    await lab.complete(started)
    await lab.outcome(started)


async def _one_after_another(lab: Lab, number: int) -> list[Started]:
    """Jobs that hold a slot, or stand in the line, in the order of the list."""
    jobs = []
    for place in range(number):
        jobs.append(await lab.provision(job_id=f"job-{place}"))
        await lab.reaches(jobs[-1], S.AWAITING_ADOPTION, S.QUEUED)
    return jobs


async def test_the_freed_slot_is_taken_by_the_next_waiter_without_any_schedule(lab: Lab) -> None:
    await lab.apply(laptop(maxAgents=1))
    jobs = await _one_after_another(lab, 4)

    for job in jobs:
        await asyncio.wait_for(_serve(lab, job), 120)

    assert [schedule async for schedule in await lab.temporal.list_schedules()] == []
    assert [agent for what, agent, _ in lab.cloud.log if what == "created"] == [job.agent_id for job in jobs]
    await lab.nothing_left()


@pytest.mark.scenario("S46")
async def test_a_job_whose_best_match_is_full_gets_the_second(lab: Lab) -> None:
    config = laptop(maxAgents=1)
    wider = label_set("linux")
    wider["labels"] = ["linux", "large"]
    config["scalers"].append({**config["scalers"][0], "name": "wider", "labelSets": [wider]})
    await lab.apply(config)
    lab.start_host(ScriptedBackend(lab.cloud, host="host-2"), scaler="wider")

    jobs = await _one_after_another(lab, 3)
    third = await lab.reaches(jobs[2], S.QUEUED)

    assert [(await lab.status(job)).scaler for job in jobs[:2]] == [SCALER, "wider"]
    assert "scaler:laptop is full" in third.waiting_for
    assert "scaler:wider is full" in third.waiting_for
    await _serve(lab, jobs[1])
    assert (await lab.reaches(jobs[2], S.AWAITING_ADOPTION)).scaler == "wider"
    await asyncio.gather(_serve(lab, jobs[0]), _serve(lab, jobs[2]))
    await lab.nothing_left()


@pytest.mark.scenario("S45")
async def test_a_cap_that_is_lowered_and_raised_under_load_takes_effect_and_leaks_nothing(lab: Lab) -> None:
    """Nobody is evicted by a lower cap, nobody is admitted above it, and a higher one is used at once."""
    await lab.apply(laptop(maxAgents=4))
    jobs = [await lab.provision(job_id=f"job-{number}") for number in range(24)]
    await until(lambda: len(lab.cloud.live) == 4)
    serving = asyncio.gather(*(_serve(lab, job, 0.1) for job in jobs))

    ceiling, used = 4, []
    for cap in (1, 3, 2, 6):
        await lab.apply(laptop(maxAgents=cap))
        ceiling = max(ceiling, cap)
        for _ in range(20):
            held = len(await lab.slots.list())
            assert held <= ceiling
            ceiling = max(min(ceiling, held), cap)  # once below, never again above
            await asyncio.sleep(0.02)
        used.append(ceiling)
    await serving

    assert used[-1] <= 6
    assert lab.cloud.most <= 6
    assert {(await lab.outcome(job)).result for job in jobs} == {"succeeded"}
    await lab.nothing_left()


@pytest.mark.scenario("S17")
async def test_nothing_is_lost_while_the_only_worker_is_away_for_ten_minutes(bare_lab: Lab) -> None:
    """Rows are aged instead of waiting: a slot that is held, a place in the line, and a grant made meanwhile."""
    lab = bare_lab
    await lab.apply(laptop(maxAgents=1))
    async with control_worker(lab):
        holder, first, second = await _one_after_another(lab, 3)
        await lab.adopt(holder)

    await lab.stop_host(lab.backend.host_id)  # the holder's teardown, there, would tell of the grant before the sweep
    await lab.complete(holder)
    await lab.slots.release(holder.agent_id, "completed")  # the grant that nobody signals
    away = timedelta(minutes=10)
    for statement in (
        "update scaler_spawning_agents set spawned_at = spawned_at - %(away)s, notified_at = notified_at - %(away)s",
        "update scaler_waiters set enqueued_at = enqueued_at - %(away)s",
    ):
        await lab.db.fetch_all(statement, {"away": away})
    async with control_worker(lab):
        outcome = await lab.sweep()
        lab.start_host(lab.backend)
        for job in (first, second):
            await _serve(lab, job)
        await lab.outcome(holder)

        assert outcome.steps["line"].done["handed_over"] == 1
        assert outcome.steps["line"].done["given_back"] == 0
        await lab.nothing_left()


@pytest.mark.timeout(600)
async def test_five_hundred_waiters_are_started_in_the_order_of_the_line(lab: Lab) -> None:
    """Cap 10, jobs of random length, three priorities: within each first come first served, never more than ten."""
    await lab.apply(laptop(maxAgents=10))
    dice = random.Random(500)  # noqa: S311 - reproducible, not secret
    holders = [await lab.provision(job_id=f"holder-{number}") for number in range(10)]
    await until(lambda: len(lab.cloud.live) == 10)
    spawned: asyncio.Queue[str] = asyncio.Queue()
    lab.backend.after_create = spawned.put
    jobs: list[Started] = []
    for begin in range(0, 500, 20):
        jobs += await asyncio.gather(
            *(
                lab.provision(job_id=f"job-{number}", priority=dice.choice([1, 3, 3, 5]))
                for number in range(begin, begin + 20)
            )
        )
    await until(lambda: _in_line(lab, 500), patience=120)
    line = [waiter.agent_id for waiter in await Line(lab.db).list()]
    await _write_down_who_is_given_a_slot(lab)

    by_agent = {job.agent_id: job for job in [*holders, *jobs]}
    working = [asyncio.create_task(_work(lab, job, 0.0)) for job in holders]
    for _ in line:
        agent_id = await asyncio.wait_for(spawned.get(), 60)
        working.append(asyncio.create_task(_work(lab, by_agent[agent_id], dice.random() * 0.2)))
    await asyncio.gather(*working)

    served = set(line)
    granted = await lab.db.fetch_all(
        "select agent_id from scaler_provision_outcomes where end_reason = 'completed' order by adopted_at"
    )
    assert len(granted) == 510
    created = [agent for what, agent, _ in lab.cloud.log if what == "created" and agent in served]
    assert lab.cloud.most == 10
    given = [agent_id for (agent_id,) in await lab.db.fetch_all("select agent_id from given order by number")]
    assert given == line
    # Ten are under way side by side, so nobody reaches the backend before more than nine who were given theirs earlier.
    # How much later than its turn one gets there is no matter of the line: the other nine may be quick.
    places = {agent: place for place, agent in enumerate(line)}
    assert all(places[agent] - place < 10 for place, agent in enumerate(created))
    await lab.nothing_left()


async def _write_down_who_is_given_a_slot(lab: Lab) -> None:
    """From now on, in the order in which it happens, whoever does it."""
    for statement in (
        "create table given (number bigserial primary key, agent_id text not null)",
        """
        create function write_down() returns trigger language plpgsql as $$
        begin
          insert into given (agent_id) values (new.agent_id);
          return null;
        end $$
        """,
        "create trigger given after insert on scaler_reservations for each row execute function write_down()",
    ):
        await lab.db.fetch_all(statement)


async def _in_line(lab: Lab, number: int) -> bool:
    return bool(await lab.db.fetch_value("select count(*) = %(n)s from scaler_waiters", {"n": number}))
