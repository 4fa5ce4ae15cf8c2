"""Spawns that are cut short while EC2 answers: nobody's machine is ended under an agent at work, and none is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from temporalio.client import WorkflowFailureError

from hatchway.model import ProvisionState
from tests.contract.backend import Behaviour, destroy, fresh_agent_id, silent, spec_for
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, Ec2Harness
from tests.support.fake_ec2.specs import ec2_scaler, ec2_spec
from tests.support.fake_ec2.wire import Parameters
from tests.support.namespaces import until
from tests.support.stack import Stack

S = ProvisionState
Run = Callable[..., AbstractAsyncContextManager[Stack]]


class Launch:
    """Holds the answer to a launch, once its instance is there; or what else is said to be held."""

    def __init__(self, cloud: FakeEc2, action: str = "RunInstances", when: str = "after") -> None:
        self.made, self._may_answer = threading.Event(), threading.Event()
        self._holds = (action, when)
        cloud.held = self._hold

    def _hold(self, action: str, _parameters: Parameters, when: str) -> None:
        if (action, when) == self._holds:
            self.made.set()
            self._may_answer.wait(60)

    async def is_made(self) -> None:
        await until(self.made.is_set, what="an instance")

    def answer(self) -> None:
        self._may_answer.set()


@pytest.mark.scenario("S18")
async def test_a_spawn_that_is_cancelled_while_ec2_answers_leaves_its_instance_to_the_teardown(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    """The cancel goes through when EC2 has answered, and no earlier: the teardown then finds what it has made."""
    agent_id, launch = fresh_agent_id(), Launch(cloud)
    spawning = asyncio.ensure_future(harness.backend.spawn(spec_for(harness, agent_id, Behaviour.RUNS), silent))
    await launch.is_made()

    spawning.cancel()
    await asyncio.wait([spawning], timeout=0.3)
    still_waits = not spawning.done()
    launch.answer()
    await asyncio.wait([spawning])
    left = len(cloud.live(agent_id))
    await destroy(harness.backend, agent_id)

    assert still_waits
    assert spawning.cancelled()
    assert left == 1
    assert await harness.remains(agent_id) == []


async def test_an_attempt_that_found_an_instance_ends_none_when_it_is_cancelled(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    """The machine is an earlier attempt's, confirmed long ago; this one was only slow to hear of that."""
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    launch, other = Launch(cloud), await harness.another()
    spawning = asyncio.ensure_future(other.spawn(spec_for(harness, agent_id), silent))
    await launch.is_made()

    spawning.cancel()
    launch.answer()
    await asyncio.wait([spawning])

    assert spawning.cancelled()
    assert await harness.backend.find(agent_id) == ref
    assert len(cloud.live(agent_id)) == 1


@pytest.mark.scenario("S18")
@pytest.mark.parametrize(("during", "launches"), [("DescribeImages", 0), ("DescribeInstances", 0), ("RunInstances", 1)])
async def test_a_spawn_that_is_cancelled_on_its_way_through_the_offers_asks_for_no_further_one(
    harness: Ec2Harness, cloud: FakeEc2, during: str, launches: int
) -> None:
    """The call that is under way is let to its end, and refused: there would be two more offers."""
    agent_id = fresh_agent_id()
    cloud.mischief.short_of = {"m7i.large spot"}
    wanted = Launch(cloud, during, "before")
    offers = [
        {"instanceType": "m7i.large", "spot": True},
        {"instanceType": "m7i.large"},
        {"instanceType": "m7i.xlarge"},
    ]
    scaler = ec2_scaler(cloud.url, ec2={"userData": "exec sleep 3600", "offers": offers})
    spec = ec2_spec(scaler, agent_id, {"KICI_AGENT_ID": agent_id}, INSTALLATION, asked_before=True)
    spawning = asyncio.ensure_future(harness.backend.spawn(spec, silent))
    await wanted.is_made()

    spawning.cancel()
    wanted.answer()
    await asyncio.wait([spawning])

    assert spawning.cancelled()
    assert cloud.calls["RunInstances"] == launches
    assert cloud.of(agent_id) == []


@pytest.mark.scenario("S18")
async def test_a_provision_that_is_cancelled_while_ec2_answers_leaves_no_instance_and_no_slot(
    stack_of: Run, cloud: FakeEc2
) -> None:
    async with stack_of("sleep", "600") as stack:
        launch = Launch(cloud)
        started = await stack.provision(job_id="job-1")
        await launch.is_made()

        await stack.hatchway.cancel(started.workflow_id)
        await stack.reaches(started, S.TEARING_DOWN)
        launch.answer()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(stack.temporal.get_workflow_handle(started.workflow_id).result(), 60)
        await stack.nothing_left()

    assert len(cloud.of(started.agent_id)) == 1
    assert cloud.there() == []
