"""A warm pool of containers: the job that comes is done by the container that was there before it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import docker
import pytest

from hatchway.backends.container_create import AGENT_ID
from hatchway.model import EndReason, JobResult, SweepOutcome, SweepRequest
from hatchway.store.installation import installation_id
from hatchway.store.rows import SpawnRow
from hatchway.task_queues import CONTROL
from tests.docker.backends.rig import remove_containers
from tests.docker.network.traces import remove_networks
from tests.support.docker_fixtures import bridge_address
from tests.support.namespaces import Namespaces, until
from tests.support.pools import SHAPE
from tests.support.proxy import FaultProxy
from tests.support.stack import Stack, running_stack

IDLE_BEAT = 0.3


@pytest.fixture
async def stack(
    namespaces: Namespaces, database_url: str, docker_client: docker.DockerClient, agent_image: str
) -> AsyncIterator[Stack]:
    """A pool of one, whose agents fail any other job than job-1."""
    async with running_stack(namespaces, database_url, gateway={"idle_heartbeat": IDLE_BEAT}) as running:
        gateway = urlsplit(running.gateway_url)
        with FaultProxy(("127.0.0.1", int(gateway.port or 0)), host=bridge_address(docker_client)) as between:
            await running.apply(_pool(1, agent_image, f"http://{between.address}"))
            yield running
            await running.apply(_pool(0, agent_image, f"http://{between.address}"))
            await until(lambda: _empty(running), what="a pool that is drained")
        installation = await installation_id(running.db)
    remove_containers(docker_client, installation)
    remove_networks(docker_client, installation)


def _pool(size: int, image: str, gateway: str) -> dict[str, Any]:
    command = ["/bin/sh", "-c", 'test "$HATCHWAY_JOB_ID" = job-1']
    return {
        "version": 1,
        "scalers": [
            {
                "name": "docker", "type": "container", "maxAgents": 2, "stopGraceSeconds": 1,
                "orchestratorUrl": gateway, "warmPool": {"size": size},
                "labelSets": [
                    {
                        "labels": ["box"], "image": image, "resources": SHAPE,
                        "env": {"HATCHWAY_AGENT_COMMAND": json.dumps(command)},
                    }
                ],
            }
        ],
    }  # fmt: skip


async def _sweep(stack: Stack) -> SweepOutcome:
    outcome: SweepOutcome = await stack.temporal.execute_workflow(
        "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL, result_type=SweepOutcome
    )
    return outcome


async def _empty(stack: Stack) -> bool:
    await _sweep(stack)
    return not await stack.slots.list()


async def _ready(stack: Stack, *others: str) -> SpawnRow:
    async def there() -> SpawnRow | None:
        rows = [row for row in await stack.slots.list() if row.agent_id not in others]
        ready = (row for row in rows if row.warm_key and row.adopted and not row.bound_job_id)
        return next((row for row in ready if row.compute), None)  # which its spawn writes, perhaps after it registered

    row: SpawnRow = await until(there, what="a warm agent that has registered")
    return row


def _running(client: docker.DockerClient, agent_id: str) -> list[str]:
    found = client.containers.list(filters={"label": f"{AGENT_ID}={agent_id}"})
    return [str(container.id) for container in found]


async def test_a_warm_container_does_the_job_that_comes_and_another_takes_its_place(
    stack: Stack, docker_client: docker.DockerClient
) -> None:
    await _sweep(stack)
    warm = await _ready(stack)
    waiting = _running(docker_client, warm.agent_id)

    started = await stack.provision(labels=["box"], job_id="job-1", run_id="run-1")
    spec = await stack.hatchway.wait_adopted(started)
    outcome = await stack.hatchway.outcome(started)
    await _sweep(stack)
    next_one = await _ready(stack, warm.agent_id)

    assert warm.compute is not None
    assert waiting == [warm.compute["ref"]]
    assert spec.agent_id == outcome.agent_id == warm.agent_id
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
    assert _running(docker_client, warm.agent_id) == []
    assert len(_running(docker_client, next_one.agent_id)) == 1
