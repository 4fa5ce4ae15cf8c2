"""Provisions that are cancelled while a customer is still at the scale-up: nothing of them is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from hatchway.backends.event import EventBackend
from hatchway.backends.event_aws import AwsDeliveries
from hatchway.config.event_schema import ProvisioningTarget
from hatchway.events import ScaleDown, ScaleUp
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from tests.integration.events import misbehaving
from tests.support.customer import (
    Customer,
    FixedConfig,
    event_scaler,
    facts_of,
    fresh_agent_id,
    silent,
    spec_of,
    was_asked,
)
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, running_stack

QUEUE = "sqs:https://sqs.eu-west-1.amazonaws.com/1/q"


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, customer: Customer) -> AsyncIterator[Stack]:
    async with running_stack(namespaces, database_url, event_scaler(customer.target())) as running:
        yield running


@pytest.mark.scenario("S18")
@pytest.mark.parametrize("how", ["it heeds its cancel", "its machine stands already"])
async def test_a_provision_that_is_cancelled_while_its_customer_boots_leaves_no_machine_and_no_slot(
    stack: Stack, customer: Customer, how: str
) -> None:
    served = misbehaving.SlowScaleUp if how == "it heeds its cancel" else misbehaving.DeafScaleUp
    customer.start(workflows=[served, misbehaving.QuickScaleDown])
    started = await stack.provision(job_id="job-1")
    await until(lambda: was_asked(customer, started.agent_id), what="a scale-up")

    await stack.hatchway.cancel(started.workflow_id)
    if served is misbehaving.DeafScaleUp:
        await customer.scale_up(started.agent_id).signal("go")
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(stack.temporal.get_workflow_handle(started.workflow_id).result(), 90)
    await stack.nothing_left()

    up = await customer.scale_up(started.agent_id).describe()
    down = await customer.scale_down(started.agent_id).describe()
    assert up.status is not WorkflowExecutionStatus.RUNNING
    assert down.status is WorkflowExecutionStatus.COMPLETED
    assert up.close_time is not None
    assert up.close_time <= down.start_time
    assert (await customer.event_of(customer.scale_down(started.agent_id)))["reason"] == "shutdown"


@pytest.mark.scenario("S18")
async def test_a_teardown_comes_after_a_delivery_that_was_on_its_way(
    customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that overtakes the word that nobody wants it any more would boot a machine for good."""
    taken: list[str] = []
    on_its_way, may_arrive = asyncio.Event(), asyncio.Event()

    async def send(_self: AwsDeliveries, _target: Any, event: ScaleUp | ScaleDown, _of: ProvisioningTarget) -> None:
        on_its_way.set()
        await may_arrive.wait()
        taken.append(event.name.value)

    monkeypatch.setattr(AwsDeliveries, "send", send)
    config = FixedConfig.of(event_scaler(QUEUE))
    backend = EventBackend("customers", customer.temporal, config, Metrics.of(customer.temporal))
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await on_its_way.wait()

    spawning.cancel()
    await asyncio.wait([spawning], timeout=0.3)
    still_waits = not spawning.done()
    may_arrive.set()
    await asyncio.wait([spawning])
    await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.SHUTDOWN)

    assert still_waits
    assert taken == ["kici.scaler.scale-up", "kici.scaler.scale-down"]
