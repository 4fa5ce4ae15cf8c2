"""No claim code lies in a customer's history, nor in Hatchway's: everything is decoded and searched for it, in every
spelling. That the search sees what is there is shown by a workflow that was given a code in the clear.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from examples.customer_workflows.machines import Machines
from examples.customer_workflows.workflows import ScaleDown
from hatchway.client import ProvisionFailed, Started
from hatchway.events import ScaleUp
from hatchway.model import EndReason
from tests.integration.events.quoting import QuotingScaleUp
from tests.support.customer import Customer, a_customer, event_scaler
from tests.support.markers import Place, hits
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, running_stack


class Witness(Machines):
    """Machines that remember the codes that they were booted with, opened."""

    claims: dict[str, str]
    boots = True

    def boot(self, wanted: ScaleUp, claim_code: str) -> None:
        self.claims = {**getattr(self, "claims", {}), wanted.agent_id: claim_code}
        if self.boots:
            super().boot(wanted, claim_code)


@pytest.fixture
async def customer(namespaces: Namespaces) -> AsyncIterator[Customer]:
    async with a_customer(namespaces, serving=False) as one:
        one.machines = Witness(one.directory)
        yield one


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, customer: Customer) -> AsyncIterator[Stack]:
    beats = {"heartbeat_interval": 0.3}
    async with running_stack(namespaces, database_url, event_scaler(customer.target()), gateway=beats) as running:
        yield running


async def _everything(client: Client, at_least: int) -> Place:
    """The histories of a namespace, with every payload in the clear, and what its list shows."""
    place = Place(client.namespace)

    async def listed() -> bool:
        return len([one async for one in client.list_workflows()]) >= at_least

    await until(listed, what="the workflows in the list")
    async for one in client.list_workflows():
        history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
        place.add(f"{one.id}: history", history.to_json().encode())
        for event in history.events:
            place.add(f"{one.id}: event {event.event_id}", event.SerializeToString())  # payloads as they are
        place.add(f"{one.id}: list", one.raw_info.SerializeToString())
        described = await client.get_workflow_handle(one.id, run_id=one.run_id).describe()
        place.add(f"{one.id}: description", described.raw_description.SerializeToString())
    return place


async def _ends(stack: Stack, started: Started) -> None:
    try:
        await stack.hatchway.outcome(started)
    except ProvisionFailed:
        return


@pytest.mark.scenario("S41")
async def test_no_claim_code_lies_in_any_history(stack: Stack, customer: Customer) -> None:
    customer.start()
    served = await stack.provision(job_id="job-1")
    await stack.hatchway.wait_adopted(served)
    await stack.hatchway.release(served.workflow_id, served.agent_id, reason=EndReason.DRAINED)
    await _ends(stack, served)
    await customer.stop()
    machines = customer.machines
    assert isinstance(machines, Witness)
    machines.boots = False  # an agent that registered before the failure arrived would be at work, and stay
    customer.start(workflows=[QuotingScaleUp, ScaleDown])  # fails with all that it knows
    quoted = await stack.provision(job_id="job-2")
    await _ends(stack, quoted)
    claims = {f"claim {agent}": code for agent, code in machines.claims.items()}
    assert set(machines.claims) == {served.agent_id, quoted.agent_id}
    control = f"control-{uuid.uuid4().hex}"
    await customer.temporal.start_workflow(
        "ScaleUp", {"claimCode": control}, id="scale-up/control", task_queue="nobody-polls-this"
    )

    theirs = await _everything(customer.temporal, at_least=5)
    ours = await _everything(stack.temporal, at_least=2)

    assert hits([theirs], {"the control": control}), "the search does not see what is there"
    assert hits([ours], {"the job": "job-2"}), "the search does not see what is there"
    assert hits([theirs, ours], claims) == []
    assert hits([theirs, ours], {"piece of a claim": next(iter(claims.values()))[12:30]}) == []
