"""A worker and its host that are gone for good: who is on it is named, let go and replaced; all others go on."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from hatchway.client import ProvisionFailed
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from hatchway.store.presence import Presence
from tests.integration.cli.conftest import Hatchway
from tests.integration.reap.facts import aged, gateway, quick, silent
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import ScriptedBackend

S = ProvisionState
Command = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]

STRANDED = 2 * 3600
"""Seconds; beyond the stranded timeout."""


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    async with running_lab(namespaces, database_url, quick(stopGraceSeconds=0)) as running:
        await gateway(running.db)
        yield running


@pytest.fixture
def hatchway(lab: Lab, database_url: str) -> Command:
    """The command line, in a thread: the lab's workers run in this process."""
    command = Hatchway(
        {
            "DATABASE_URL": database_url,
            "TEMPORAL_ADDRESS": lab.temporal.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": lab.temporal.namespace,
        }
    )

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, *arguments)

    return run


async def _page(lab: Lab, workflow_id: str) -> str:
    """The current details, as Temporal's UI fetches them."""
    metadata: Any = await lab.temporal.get_workflow_handle(workflow_id).query("__temporal_workflow_metadata")
    return str(metadata.get("currentDetails", "") if isinstance(metadata, dict) else metadata.current_details)


async def _findings(hatchway: Command, check: str) -> list[str]:
    found = json.loads((await hatchway("doctor", "--json")).stdout)["findings"]
    return [f"{one['what']} / {one['where']} / {one['todo']}" for one in found if one["check"] == check]


@pytest.mark.scenario("S14")
async def test_a_host_that_is_gone_is_named_its_jobs_are_offered_again_and_forget_frees_its_slots(
    lab: Lab, hatchway: Command
) -> None:
    busy, fresh = await lab.provision(job_id="busy"), await lab.provision(job_id="fresh")
    for started in (busy, fresh):
        await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(busy)
    await lab.stop_host("host-1")
    elsewhere = ScriptedBackend(lab.cloud, host="host-2")
    lab.start_host(elsewhere)
    await Presence(lab.db).instance_beat("worker-2", "worker", "1", ["host-2"], "boot")

    # the agent at work is given up once it has been silent for so long; the one that never came is cancelled
    await silent(lab.db, STRANDED, busy.agent_id)
    assert (await lab.sweep()).steps["reap"].done["condemned"] == 1
    await lab.hatchway.cancel(fresh.workflow_id, "its host is gone")
    queues = await _findings(hatchway, "queues")
    other = await lab.provision(job_id="other")
    await lab.reaches(other, S.AWAITING_ADOPTION)
    assert (await lab.failure(busy)).error_type == ErrorType.AGENT_LOST
    with pytest.raises(ProvisionFailed):
        await lab.outcome(fresh)
    again = await lab.provision(job_id="busy")
    await lab.reaches(again, S.AWAITING_ADOPTION)

    teardowns = [f"teardown/{agent}" for agent in (busy.agent_id, fresh.agent_id)]
    for started in (busy, fresh):
        await aged(lab.db, "closing_at", 3600, started.agent_id)
    stuck = await _findings(hatchway, "provisions")
    await until(lambda: _name_the_host(lab, teardowns))
    pages = [await _page(lab, at) for at in teardowns]
    held = {row.agent_id: row.host_id for row in await lab.slots.list()}
    forgotten = [await hatchway("forget", agent) for agent in (busy.agent_id, fresh.agent_id)]
    for at in teardowns:
        await lab.temporal.get_workflow_handle(at).result()

    (queue,) = queues
    assert queue.startswith("nobody polls host host-1: 2 agents of it hold a slot / task queue hatchway.host.host-1")
    assert "hatchway forget" in queue
    assert len(stuck) == 2
    assert all("nobody polls host host-1" in line and "hatchway forget scaler-" in line for line in stuck)
    assert all("hatchway forget" in page for page in pages)
    assert held == {
        busy.agent_id: "host-1", fresh.agent_id: "host-1", other.agent_id: "host-2", again.agent_id: "host-2"
    }  # fmt: skip
    assert [done.returncode for done in forgotten] == [0, 0]
    assert {row.agent_id for row in await lab.slots.list()} == {other.agent_id, again.agent_id}
    for started in (other, again):
        await lab.adopt(started)
        await lab.complete(started)
        assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert await lab.slots.list() == []
    assert await lab.db.fetch_all("select scope from scaler_capacity where agents <> 0") == []


async def _name_the_host(lab: Lab, workflows: list[str]) -> bool:
    return all(["nobody polls host host-1" in await _page(lab, workflow_id) for workflow_id in workflows])
