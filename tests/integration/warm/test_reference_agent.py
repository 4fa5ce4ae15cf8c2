"""The whole of it with real processes: a worker, a gateway, and the reference agent that waits for its job."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from hatchway.model import EndReason, JobResult, SweepOutcome, SweepRequest
from hatchway.store.rows import SpawnRow
from hatchway.task_queues import CONTROL
from tests.support.namespaces import Namespaces, until
from tests.support.pools import SHAPE
from tests.support.stack import Stack, label_set, laptop, running_stack

IDLE_BEAT = 0.3


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str) -> AsyncIterator[Stack]:
    """A pool of one, whose agents fail any other job than job-1."""
    command = ("/bin/sh", "-c", 'test "$HATCHWAY_JOB_ID" = job-1')
    config = laptop(warmPool={"size": 1}, labelSets=[label_set("linux", *command, resources=SHAPE)])
    async with running_stack(namespaces, database_url, config, gateway={"idle_heartbeat": IDLE_BEAT}) as running:
        yield running


async def _sweep(stack: Stack) -> SweepOutcome:
    outcome: SweepOutcome = await stack.temporal.execute_workflow(
        "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL, result_type=SweepOutcome
    )
    return outcome


async def _ready(stack: Stack) -> SpawnRow:
    async def there() -> SpawnRow | None:
        return next((r for r in await stack.slots.list() if r.warm_key and r.adopted and not r.bound_job_id), None)

    row: SpawnRow = await until(there, what="a warm agent that has registered")
    return row


async def _drained(stack: Stack) -> None:
    await stack.apply(laptop(warmPool={"size": 0}, labelSets=[label_set("linux", "true", resources=SHAPE)]))

    async def gone() -> bool:
        await _sweep(stack)
        return not await stack.slots.list()

    await until(gone)
    await stack.nothing_left()


async def test_a_warm_process_does_the_job_that_comes(stack: Stack) -> None:
    await _sweep(stack)
    warm = await _ready(stack)

    started = await stack.provision(job_id="job-1", run_id="run-1")
    spec = await stack.hatchway.wait_adopted(started)
    outcome = await stack.hatchway.outcome(started)

    assert spec.agent_id == outcome.agent_id == warm.agent_id
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
    recorded = await stack.db.fetch_one(
        "select job_id, run_id, result, exit_code from scaler_agent_jobs where agent_id = %(a)s", {"a": warm.agent_id}
    )
    assert recorded == ("job-1", "run-1", "succeeded", 0)
    await _drained(stack)


@pytest.mark.scenario("S27")
async def test_an_agent_that_was_idle_for_two_hours_still_works(stack: Stack) -> None:
    """Its token was good for ten minutes until it registered, and lives as long as its row from then on."""
    await _sweep(stack)
    warm = await _ready(stack)
    for table, columns in (
        ("scaler_spawning_agents", ("spawned_at", "adopted_at", "deadline_at")),
        ("scaler_agent_tokens", ("minted_at", "registered_at")),
        ("scaler_pending_claims", ("created_at", "consumed_at", "expires_at")),
        ("scaler_reservations", ("reserved_at",)),
    ):
        aged = ", ".join(f"{column} = {column} - interval '2 hours'" for column in columns)
        await stack.db.fetch_all(f"update {table} set {aged} where agent_id = %(a)s", {"a": warm.agent_id})  # noqa: S608
    await _sweep(stack)

    started = await stack.provision(job_id="job-1")
    outcome = await stack.hatchway.outcome(started)

    assert (outcome.agent_id, outcome.result) == (warm.agent_id, JobResult.SUCCEEDED)
    await _drained(stack)
