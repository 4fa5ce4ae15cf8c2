"""The reaper among real processes: a worker, a gateway, and reference agents that run jobs on this host."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hatchway.client import Started
from hatchway.model import ProvisionState, SweepOutcome, SweepRequest
from hatchway.reaping import Windows
from hatchway.store.reaping import Reaping
from hatchway.task_queues import CONTROL
from tests.integration.reap.facts import silent
from tests.support.chaos.processes import signal_agent
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, label_set, laptop, running_stack

S = ProvisionState
FLAP_GRACE_S = 1
CONFIG = {
    **laptop(labelSets=[label_set("brief", "sleep", "9"), label_set("long", "sleep", "600")], stopGraceSeconds=1),
    "reaper": {"flapGraceSeconds": FLAP_GRACE_S},
}


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str) -> AsyncIterator[Stack]:
    async with running_stack(namespaces, database_url, CONFIG) as running:
        yield running


async def _at_work(stack: Stack, label: str) -> Started:
    started = await stack.provision(labels=[label], job_id=f"job-{label}")
    await stack.reaches(started, S.ACTIVE)
    return started


async def _reaped(stack: Stack) -> dict[str, int]:
    swept: SweepOutcome = await stack.temporal.execute_workflow(
        "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL, result_type=SweepOutcome
    )
    return {what: number for what, number in swept.steps["reap"].done.items() if number}


@pytest.mark.scenario("S23")
async def test_a_job_whose_workflow_was_terminated_runs_to_its_end_and_its_slot_is_free(stack: Stack) -> None:
    started = await _at_work(stack, "brief")
    await stack.temporal.get_workflow_handle(started.workflow_id).terminate()

    while await stack.slots.get(started.agent_id):
        assert "condemned" not in await _reaped(stack)

    await stack.nothing_left()
    outcome = await stack.outcomes.get(started.agent_id)
    assert outcome is not None
    assert (outcome.end_reason, outcome.result, outcome.condemned_at) == ("completed", "succeeded", None)


async def test_an_agent_that_is_silent_after_its_workflow_was_terminated_is_ended(stack: Stack) -> None:
    """Its process still runs: the reaper cannot know that it only lost its network."""
    started = await _at_work(stack, "long")
    row = await stack.slots.get(started.agent_id)
    assert row is not None
    assert row.compute is not None
    await stack.temporal.get_workflow_handle(started.workflow_id).terminate()
    assert signal_agent(started.agent_id, signal.SIGSTOP)  # or it would beat between the ageing and the pass
    await silent(stack.db, 91)
    await until(lambda: _gateway_could_have_heard(stack), what="a gateway alive for the flap grace")

    assert await _reaped(stack) == {"condemned": 1}
    await stack.nothing_left()

    teardown = stack.temporal.get_workflow_handle(f"teardown/{started.agent_id}")
    assert (await teardown.result())["teardown"] == "confirmed"
    await until(lambda: _ended(stack, started))


async def _gateway_could_have_heard(stack: Stack) -> bool:
    """Before that the reaper is blind and rightly condemns nobody: this gateway may be younger than a second."""
    windows = Windows(flap_grace=timedelta(seconds=FLAP_GRACE_S))
    return not (await Reaping(stack.db).sight(windows)).blocked


async def _ended(stack: Stack, started: Started) -> bool:
    outcome = await stack.outcomes.get(started.agent_id)
    return outcome is not None and outcome.end_reason == "heartbeat-timeout"
