"""A pool holds as many ready agents as the configuration says, and never stands in anybody's way."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from hatchway.store.slots import SpawnRow
from hatchway.store.waiters import Line
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.pools import SHAPE, filled, pooled, ready, started_of, taken, warm_rows

S = ProvisionState


async def _age(lab: Lab, started: Started, by: timedelta) -> None:
    await lab.db.fetch_all(
        "update scaler_spawning_agents set adopted_at = adopted_at - %(by)s where agent_id = %(agent_id)s",
        {"by": by, "agent_id": started.agent_id},
    )


async def _left(lab: Lab, number: int) -> list[str]:
    """The warm agents that are left once there are that many."""

    async def so_many() -> list[SpawnRow] | None:
        rows = [row for row in await warm_rows(lab) if not row.drain_requested]
        return rows if len(rows) == number else None

    rows: list[SpawnRow] = await until(so_many) if number else []
    return [row.agent_id for row in rows]


async def test_a_pool_is_filled_to_its_size_and_no_further(lab: Lab) -> None:
    await lab.apply(pooled(size=3))

    await filled(lab, 3)
    outcome = await lab.sweep()

    assert outcome.steps["warm pools"].done["started"] == 0
    assert len(await warm_rows(lab)) == 3


async def test_fills_at_once_do_not_overshoot(lab: Lab) -> None:
    """Six looks that all see an empty pool start three agents each; the reserve lets three of them in."""
    await lab.apply(pooled(size=3))

    passes = await asyncio.gather(*(lab.sweep() for _ in range(6)))
    started = sum(one.steps["warm pools"].done["started"] for one in passes)

    async def decided() -> bool:
        # The list lags behind: at first it may show three of them, none of which has been let in or refused yet.
        provisions = [w async for w in lab.temporal.list_workflows('WorkflowType = "ProvisionWorkflow"')]
        running = [w for w in provisions if w.status is WorkflowExecutionStatus.RUNNING]
        return len(provisions) == started and len(running) == 3

    await until(decided)
    assert len(await warm_rows(lab)) == 3


@pytest.mark.parametrize(
    ("caps", "fit"),
    [
        ({"maxAgents": 2}, 2),
        ({"resourceCap": {"cpus": 2}}, 2),
        ({"resourceCap": {"memory": "3Gi"}}, 3),
    ],
    ids=["agents", "cpus", "memory"],
)
async def test_a_fill_stays_within_the_caps(lab: Lab, caps: dict[str, Any], fit: int) -> None:
    await lab.apply({**pooled(size=4, maxAgents=4), "globalMaxAgents": 100})
    await lab.apply({**pooled(size=min(4, caps.get("maxAgents", 4)), **{"maxAgents": 4, **caps})})
    outcome = await lab.sweep()

    assert outcome.steps["warm pools"].done["started"] == fit


async def test_surplus_goes_after_the_idle_timeout_oldest_first(lab: Lab) -> None:
    await lab.apply(pooled(size=3, idle=60))
    first, second, third = await filled(lab, 3)
    await lab.apply(pooled(size=1, idle=60))
    for started, minutes in ((first, 3), (second, 2)):
        await _age(lab, started, timedelta(minutes=minutes))

    await lab.sweep()

    assert await _left(lab, 1) == [third.agent_id]
    assert (await lab.outcome(first)).end_reason is EndReason.IDLE


async def test_surplus_that_is_not_idle_for_long_stays(lab: Lab) -> None:
    await lab.apply(pooled(size=2, idle=60))
    await filled(lab, 2)
    await lab.apply(pooled(size=1, idle=60))

    outcome = await lab.sweep()

    assert outcome.steps["warm pools"].done["released"] == 0


async def test_size_0_drains_the_pool(lab: Lab) -> None:
    await lab.apply(pooled(size=2))
    agents = await filled(lab, 2)
    await lab.apply(pooled(size=0))

    await lab.sweep()

    assert [(await lab.outcome(a)).end_reason for a in agents] == [EndReason.IDLE, EndReason.IDLE]
    await lab.nothing_left()


async def test_a_drained_scaler_lets_its_idle_agents_go_and_gets_no_new_ones(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await Line(lab.db).accept("laptop", False)

    await lab.sweep()
    ended = await lab.outcome(warm)
    outcome = await lab.sweep()

    assert ended.end_reason is EndReason.DRAINED
    assert outcome.steps["warm pools"].done == {"started": 0, "released": 0, "let_go": 0}


async def test_a_scaler_that_left_the_configuration_lets_its_idle_agents_go(lab: Lab) -> None:
    (warm,) = await filled(lab)
    other = pooled(size=0)
    other["scalers"][0] |= {"name": "other"}
    await lab.apply(other)

    await lab.sweep()

    assert (await lab.outcome(warm)).end_reason is EndReason.DRAINED


async def test_agents_that_would_be_made_otherwise_now_are_replaced(lab: Lab) -> None:
    (old,) = await filled(lab)
    await lab.apply(pooled(size=1, labelSets=[{"labels": ["linux"], "resources": SHAPE, "env": {"NEW": "1"}}]))

    await lab.sweep()

    assert (await lab.outcome(old)).end_reason is EndReason.IDLE
    (new,) = await filled(lab)
    assert new.agent_id != old.agent_id


async def test_the_word_that_an_agent_may_go_is_said_again_when_it_was_lost(lab: Lab) -> None:
    (warm,) = await filled(lab)
    await lab.apply(pooled(size=0))
    await lab.db.fetch_all("update scaler_spawning_agents set drain_requested_at = now() - interval '1 min'")

    await lab.sweep()

    assert (await lab.outcome(warm)).end_reason is EndReason.IDLE


async def test_an_idle_agent_that_an_operator_releases_goes_at_once(lab: Lab) -> None:
    (warm,) = await filled(lab)

    await lab.release(warm, EndReason.OPERATOR)

    assert (await lab.outcome(warm)).end_reason is EndReason.OPERATOR


# ── the line ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _waits(lab: Lab, **request: Any) -> Started:
    started = await lab.provision(**request)
    await lab.reaches(started, S.QUEUED)
    return started


async def test_nothing_is_filled_while_somebody_waits(lab: Lab) -> None:
    await lab.apply(pooled(size=1, maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)
    await _waits(lab, job_id="job-1")

    outcome = await lab.sweep()
    refused = await lab.failure(await lab.provision(warm_for="laptop", on_capacity="decline"))

    assert outcome.steps["warm pools"].done["started"] == 0
    assert (refused.error_type, "jobs wait" in str(refused)) == (ErrorType.DECLINED, True)


async def test_a_warm_agent_that_becomes_ready_goes_to_the_head_of_the_line(lab: Lab) -> None:
    await lab.apply(pooled(size=1, maxAgents=1))
    await lab.sweep()

    async def being_made() -> list[SpawnRow]:
        return await warm_rows(lab)

    (row,) = await until(being_made)
    first = await _waits(lab, job_id="job-1")
    second = await _waits(lab, job_id="job-2")

    await ready(lab, started_of(row))

    assert (await lab.hatchway.wait_adopted(first)).agent_id == row.agent_id
    assert (await lab.status(second)).state is S.QUEUED


async def test_nobody_overtakes_who_waits_for_that_scaler(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head wants more than the warm agent has; who comes later would be served by it, and has to wait."""
    monkeypatch.setattr("activities.warm.HEAD_PATIENCE", timedelta(minutes=10))  # nobody makes room meanwhile
    await lab.apply(pooled(size=1, maxAgents=1))
    (warm,) = await filled(lab)
    await _waits(lab, job_id="head", resources={"cpus": 2, "memory": "1Gi"})

    await _waits(lab, job_id="later")

    assert [row.agent_id for row in await warm_rows(lab)] == [warm.agent_id]


async def test_a_head_that_waits_for_long_gets_the_oldest_idle_agent_s_room(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.warm.HEAD_PATIENCE", timedelta(minutes=10))
    await lab.apply(pooled(size=2, maxAgents=2))
    oldest, younger = await filled(lab, 2)
    head = await _waits(lab, job_id="head", resources={"cpus": 2, "memory": "1Gi"})
    before = await lab.sweep()
    await lab.db.fetch_all("update scaler_waiters set enqueued_at = enqueued_at - interval '10 min'")

    await lab.sweep()

    assert before.steps["warm pools"].done["released"] == 0
    await lab.reaches(head, S.AWAITING_ADOPTION)
    assert (await lab.outcome(oldest)).end_reason is EndReason.IDLE
    assert [row.agent_id for row in await warm_rows(lab)] == [younger.agent_id]


async def test_that_needs_no_sweep(lab: Lab) -> None:
    await lab.apply(pooled(size=1, maxAgents=1))
    (warm,) = await filled(lab)
    head = await lab.provision(job_id="head", resources={"cpus": 2, "memory": "1Gi"})

    await lab.reaches(head, S.AWAITING_ADOPTION)

    assert (await lab.outcome(warm)).end_reason is EndReason.IDLE


async def test_an_agent_of_another_scaler_that_shares_the_cap_makes_room_too(lab: Lab) -> None:
    config = pooled(size=1)
    config["globalMaxAgents"] = 1
    config["scalers"].append({
        "name": "other", "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": ["other"]}],
    })  # fmt: skip
    await lab.apply(config)
    (warm,) = await filled(lab)
    await _waits(lab, job_id="head", labels=["other"])
    await lab.db.fetch_all("update scaler_waiters set enqueued_at = enqueued_at - interval '10 s'")

    await lab.sweep()

    assert (await lab.outcome(warm)).end_reason is EndReason.IDLE


async def test_a_taken_agent_is_never_released_as_idle(lab: Lab) -> None:
    """Take and release race for the same agent, in the database; whoever wins, the job is served by a live agent."""
    await lab.apply(pooled(size=1, maxAgents=2))
    (warm,) = await filled(lab)

    job, _ = await asyncio.gather(lab.provision(job_id="job-1"), lab.release(warm, EndReason.IDLE))
    status = await lab.reaches(job, S.ACTIVE, S.AWAITING_ADOPTION)

    if status.state is S.ACTIVE:
        await lab.complete(warm)
        assert (await lab.outcome(job)).agent_id == warm.agent_id
    else:
        assert (await lab.outcome(warm)).end_reason is EndReason.IDLE
    assert (await taken_count(lab)) == 0


async def taken_count(lab: Lab) -> int:
    """Agents that are taken and not bound: none is left over."""
    found: int = await lab.db.fetch_value(
        "select count(*) from scaler_spawning_agents where bound_by is not null and bound_at is null"
    )
    return found


async def test_a_job_of_a_pool_that_was_drained_meanwhile_is_still_served(lab: Lab) -> None:
    (warm,) = await filled(lab)
    started = await taken(lab, "job-1")
    await lab.apply(pooled(size=0))

    await lab.sweep()
    await lab.complete(warm)

    assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
