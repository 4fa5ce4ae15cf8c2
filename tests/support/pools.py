"""Warm pools in the lab: their configuration, and agents that stand ready because a test plays them."""

from __future__ import annotations

from typing import Any

from hatchway.client import Started
from hatchway.model import ProvisionState
from hatchway.store.rows import SpawnRow, SpawnState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import laptop

S = ProvisionState
SHAPE = {"cpus": 1, "memory": "1Gi"}


def pooled(size: int, idle: int = 900, **scaler: Any) -> dict[str, Any]:
    """One scaler whose agents take a CPU and a gigabyte, with a warm pool of that size."""
    sets = scaler.pop("labelSets", [{"labels": ["linux"], "resources": SHAPE}])
    return laptop(warmPool={"size": size, "idleTimeoutSeconds": idle}, labelSets=sets, **scaler)


async def warm_rows(lab: Lab) -> list[SpawnRow]:
    """Warm agents that have no job, oldest first."""
    return [row for row in await lab.slots.list() if row.warm_key and not row.bound_job_id and not row.closing]


def started_of(row: SpawnRow) -> Started:
    """The provision that this row is of, as its starter would know it."""
    assert row.workflow_id is not None
    assert row.workflow_first_run_id is not None
    return Started(row.workflow_id, row.workflow_first_run_id, row.agent_id)


async def filled(lab: Lab, number: int = 1) -> list[Started]:
    """Sweep, and play the agents: that many are ready when it returns, oldest first."""

    async def being_made() -> list[SpawnRow] | None:
        rows = await warm_rows(lab)
        return rows if len(rows) >= number else None

    await lab.sweep()
    rows: list[SpawnRow] = await until(being_made, what="the pool being filled")
    fresh = [started_of(row) for row in rows if row.state is not SpawnState.ACTIVE]
    for started in fresh:  # one after the other: the pool goes by the time of the adoption
        await ready(lab, started)
    return [started_of(row) for row in rows]


async def ready(lab: Lab, started: Started) -> None:
    """Have this warm agent register."""
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.reaches(started, S.ACTIVE)


async def taken(lab: Lab, job_id: str, **request: Any) -> Started:
    """A job that a warm agent has: its provision follows."""
    started = await lab.provision(job_id=job_id, **request)
    spec = await lab.hatchway.wait_adopted(started)
    assert spec.agent_id != started.agent_id, "it got an agent of its own"
    return started
