"""Worker versioning on a real server: a provision that began under one build completes under the next."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from hatchway.cli.doctor import CHECKS
from hatchway.dev.temporal import temporal_binary
from hatchway.model import EndReason, ProvisionState, SweepRequest
from hatchway.task_queues import CONTROL
from tests.support.namespaces import until
from tests.support.stack import Stack
from tests.support.worker_process import WorkerProcess, running_worker

S = ProvisionState
DEPLOYMENT = "hatchway"
Ready = Callable[[WorkerProcess], Awaitable[dict[str, Any]]]


async def make_current(temporal: Client, build_id: str) -> None:
    """By the command that the documentation names; refused by the server until a worker of that build has polled."""

    async def done() -> bool:
        process = await asyncio.create_subprocess_exec(
            str(temporal_binary()), "worker", "deployment", "set-current-version",
            "--deployment-name", DEPLOYMENT, "--build-id", build_id, "--yes",
            "--address", temporal.service_client.config.target_host, "--namespace", temporal.namespace,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait() == 0

    await until(done, what=f"build {build_id} current")


def build(stack: Stack, build_id: str) -> Any:
    return running_worker(stack, "--deployment", DEPLOYMENT, "--build-id", build_id, "--graceful", "0")


async def builds_that_ran(stack: Stack, workflow_id: str) -> set[str]:
    """Build ids of the workers that completed a workflow task of it."""
    history = await stack.temporal.get_workflow_handle(workflow_id).fetch_history()
    return {
        event.workflow_task_completed_event_attributes.deployment_version.build_id
        for event in history.events
        if event.HasField("workflow_task_completed_event_attributes")
    }


async def test_a_provision_of_a_build_that_leaves_completes_on_the_current_one(stack: Stack, ready: Ready) -> None:
    async with build(stack, "a") as first:
        await ready(first)
        await make_current(stack.temporal, "a")
        started = await stack.provision(labels=["long"], job_id="job-1")
        await stack.reaches(started, S.ACTIVE)
        async with build(stack, "b") as second:
            said = await ready(second)
            await make_current(stack.temporal, "b")
            await first.stop()

            await stack.hatchway.release(started.workflow_id, started.agent_id, by="test", now=True)
            outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)

            await stack.nothing_left()

    assert said["deployment"] == "hatchway.b"
    assert outcome.end_reason is EndReason.RELEASED
    assert await builds_that_ran(stack, started.workflow_id) == {"a", "b"}


async def test_a_build_that_is_not_current_gets_no_workflow_but_serves_its_host(stack: Stack, ready: Ready) -> None:
    """The host's own queue is not versioned: a new build on a host tears down what an old one has spawned there."""
    async with running_worker(
        stack, "--deployment", DEPLOYMENT, "--build-id", "a", host_id="elsewhere"
    ) as current, build(stack, "b") as other:  # fmt: skip
        await ready(current)
        await ready(other)
        await make_current(stack.temporal, "a")

        started = await stack.provision(job_id="job-1")
        outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)
        await stack.nothing_left()

    assert outcome.end_reason is EndReason.COMPLETED
    assert await builds_that_ran(stack, started.workflow_id) == {"a"}


async def test_a_fleet_without_versions_goes_over_to_one_with_them(stack: Stack, ready: Ready) -> None:
    """A provision that is under way moves along, and a sweep that begins afterwards runs."""
    async with running_worker(stack) as plain:
        await ready(plain)
        started = await stack.provision(labels=["long"], job_id="job-1")
        await stack.reaches(started, S.ACTIVE)
        async with build(stack, "a") as versioned:
            await ready(versioned)
            await make_current(stack.temporal, "a")
            await plain.stop()

            await stack.temporal.execute_workflow(
                "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL,
                rpc_timeout=timedelta(seconds=60),
            )  # fmt: skip
            await stack.hatchway.release(started.workflow_id, started.agent_id, by="test", now=True)
            outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)
            await stack.nothing_left()

    assert outcome.end_reason is EndReason.RELEASED
    assert "a" in await builds_that_ran(stack, started.workflow_id)


async def test_workers_that_get_no_workflow_for_their_version_are_told(stack: Stack, ready: Ready) -> None:
    """They poll, so that nothing else would show it."""

    async def told() -> str | None:
        found = [finding.what async for finding in CHECKS["queues"](stack.db, stack.temporal)]
        return next((what for what in found if "no worker gets workflows" in what), None)

    async with build(stack, "a") as worker:
        await ready(worker)
        early = await until(told, what="no build is current")
        async with build(stack, "b") as other:
            await ready(other)
            await make_current(stack.temporal, "b")

            async def well() -> bool:
                return await told() is None

            await until(well)
        await stack.db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 minute'")
        late = await until(told, what="the current build has left, and the other has been heard of again")

    assert early == "no worker gets workflows: no build is current, and those who poll are of: hatchway a"
    assert late == ("no worker gets workflows: build b of hatchway is current, and those who poll are of: hatchway a")
