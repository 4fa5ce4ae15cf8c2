"""A `temporal:` target that is told of a teardown: what is confirmed, what is not, what comes in the wrong order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from hatchway.backends import event, event_temporal
from hatchway.backends.base import Accepted, Gone
from hatchway.backends.event import EventBackend
from hatchway.errors import DestroyError, TransientSpawnError
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from tests.integration.events import misbehaving
from tests.support.customer import (
    Customer,
    FixedConfig,
    backend_of,
    event_scaler,
    facts_of,
    fresh_agent_id,
    silent,
    spec_of,
)

SHUTDOWN = ScaleDownReason.SHUTDOWN
SHORT = timedelta(seconds=2)


async def test_a_teardown_is_gone_when_the_customer_says_so(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert await backend.destroy(agent_id, facts_of(config.scaler), ScaleDownReason.IDLE) == Gone()

    down = await customer.event_of(customer.scale_down(agent_id))
    assert (down["reason"], down["requestId"]) == ("idle", f"{agent_id}:scale-down")
    assert await backend.find(agent_id) is None


@pytest.mark.scenario("S04")
async def test_what_was_never_asked_for_is_gone_too(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleDown])

    assert await backend.destroy(fresh_agent_id(), facts_of(config.scaler), SHUTDOWN) == Gone()


@pytest.mark.scenario("S04", "S05")
@pytest.mark.parametrize(
    ("served", "limit", "words"),
    [
        ([misbehaving.FailingScaleDown], event_temporal.SCALE_DOWN_S, "failed: the cloud answered 500"),
        ([], 1.0, "had not ended after"),
    ],
    ids=["failing", "away"],
)
async def test_a_teardown_that_is_not_confirmed_is_no_end_and_is_taken_up_again(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch, served: list[type], limit: float, words: str
) -> None:
    monkeypatch.setattr(event_temporal, "SCALE_DOWN_S", limit)
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()
    if served:
        customer.start(workflows=served)

    with pytest.raises(DestroyError, match=words):
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)
    await customer.stop()
    customer.start(workflows=[misbehaving.QuickScaleDown])
    monkeypatch.undo()

    assert await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN) == Gone()


@pytest.mark.scenario("S05")
async def test_a_teardown_that_takes_long_is_joined_by_the_next_attempt(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_temporal, "SCALE_DOWN_S", 0.5)
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()
    customer.start(workflows=[misbehaving.SlowScaleDown])
    with pytest.raises(DestroyError, match="had not ended after"):
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    monkeypatch.undo()
    joining = asyncio.create_task(backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN))
    await asyncio.wait([joining], timeout=1)  # a second run would wait for a word of its own
    await customer.scale_down(agent_id).signal("go")

    assert await joining == Gone()
    assert await customer.runs_of(f"scale-down/{agent_id}") == 1


async def test_a_scale_up_is_called_off_also_where_the_scale_down_goes_elsewhere(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to itself it would boot a machine as soon as its worker comes, and nobody would tear that down."""
    delivered: list[str] = []

    async def deliver(_self: EventBackend, target: Any, *_: Any) -> None:
        delivered.append(str(target))

    monkeypatch.setattr(EventBackend, "_deliver", deliver)
    monkeypatch.setattr(event_temporal, "CALL_OFF_S", 1.0)
    hooks = {"contexts": {"hooks": {"type": "env", "targets": ["hooks.example"]}}}
    down = {"scaleDown": "https://hooks.example/down", "signingSecret": "hooks:key"}
    config = FixedConfig.of(event_scaler(customer.target(down=None, **down), secrets=hooks))
    backend, agent_id = EventBackend("customers", own, config, Metrics.of(own)), fresh_agent_id()
    with pytest.raises(TransientSpawnError):
        await backend.spawn(spec_of(config.scaler, agent_id, time_limit=SHORT), silent)

    with pytest.raises(DestroyError, match="still runs"):  # its worker is away, and cannot hear of the cancel
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)
    told_too_early = list(delivered)
    customer.start(workflows=[misbehaving.SlowScaleUp])
    monkeypatch.setattr(event_temporal, "CALL_OFF_S", 60.0)

    assert await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN) == Accepted()
    assert told_too_early == []
    assert len(delivered) == 1
    assert (await customer.scale_up(agent_id).describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_teardown_that_is_told_twice_runs_once(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    other = EventBackend("customers", own, config, Metrics.of(own))
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    for one in (backend, other, backend):
        await one.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert await customer.runs_of(f"scale-down/{agent_id}") == 1


async def test_a_scale_up_that_comes_after_its_scale_down_is_looked_for_again(own: Client, customer: Customer) -> None:
    """A worker that was cut off asks late: what it made must not be taken for gone by the teardown that came before."""
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert await customer.runs_of(f"scale-down/{agent_id}", at_least=2) == 2


async def test_a_teardown_ends_a_scale_up_that_is_under_way(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.SlowScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    with pytest.raises(TransientSpawnError):
        await backend.spawn(spec_of(config.scaler, agent_id, time_limit=SHORT), silent)

    assert await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN) == Gone()

    up, down = await customer.scale_up(agent_id).describe(), await customer.scale_down(agent_id).describe()
    assert up.status is WorkflowExecutionStatus.CANCELED
    assert up.close_time is not None
    assert up.close_time <= down.start_time


async def test_nothing_is_gone_while_a_scale_up_does_not_heed_its_cancellation(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_temporal, "CALL_OFF_S", 0.5)
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.DeafScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    with pytest.raises(TransientSpawnError):
        await backend.spawn(spec_of(config.scaler, agent_id, time_limit=SHORT), silent)

    with pytest.raises(DestroyError, match="still runs"):
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)
    monkeypatch.undo()
    await customer.scale_up(agent_id).signal("go")

    assert await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN) == Gone()


async def test_a_teardown_goes_where_the_row_says_whatever_the_configuration_says_now(
    own: Client, customer: Customer, shared: Customer
) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id, facts = fresh_agent_id(), facts_of(config.scaler)
    await backend.spawn(spec_of(config.scaler, agent_id), silent)
    elsewhere = replace(shared, queue="nobody-polls-this")
    config.config = FixedConfig.of(event_scaler(elsewhere.target())).config

    assert await backend.destroy(agent_id, facts, SHUTDOWN) == Gone()


async def test_a_row_that_lost_its_targets_goes_by_the_configuration_in_force(own: Client, customer: Customer) -> None:
    """Nobody knows whether they are the ones that made the machine: what they confirm is no proof that it is gone."""
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleDown])
    facts = facts_of(config.scaler).model_copy(update={"provisioning_targets": []})
    agent_id = fresh_agent_id()

    taken = await backend.destroy(agent_id, facts, SHUTDOWN)

    assert isinstance(taken, Accepted)
    assert f"the row of {agent_id} was lost" in taken.doubt
    assert (await customer.scale_down(agent_id).describe()).status is WorkflowExecutionStatus.COMPLETED
    config.config = FixedConfig.of({**event_scaler(customer.target()), "scalers": [_other_scaler()]}).config
    with pytest.raises(DestroyError, match="has left the configuration"):
        await backend.destroy(fresh_agent_id(), facts, SHUTDOWN)


async def test_targets_of_another_time_that_fail_say_how_their_agent_is_ended(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.FailingScaleDown])
    facts = facts_of(config.scaler).model_copy(update={"provisioning_targets": []})
    agent_id = fresh_agent_id()

    with pytest.raises(DestroyError, match=f"hatchway forget {agent_id}"):
        await backend.destroy(agent_id, facts, SHUTDOWN)


@pytest.mark.scenario("S07")
async def test_a_server_that_does_not_answer_may_be_asked_again(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer, address="127.0.0.1:1")

    with pytest.raises(TransientSpawnError, match=r"does not answer at 127\.0\.0\.1:1"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
    with pytest.raises(DestroyError, match=r"does not answer at 127\.0\.0\.1:1"):
        await backend.destroy(fresh_agent_id(), facts_of(config.scaler), SHUTDOWN)


async def test_an_attempt_that_has_little_time_left_still_says_what_it_waits_for(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one of a round: what it says is what stands on the page."""
    monkeypatch.setattr(event, "DESTROY_S", 4.0)
    backend, config = backend_of(own, customer)

    with pytest.raises(DestroyError, match="no worker has taken it from the task queue"):
        await backend.destroy(fresh_agent_id(), facts_of(config.scaler), SHUTDOWN)


async def test_a_target_that_is_down_keeps_no_other_one_waiting(own: Client, customer: Customer) -> None:
    down = {"scaleUp": "temporal:elsewhere/q/T", "claimKey": customer.claim_key, "address": "127.0.0.1:1"}
    config = FixedConfig.of(event_scaler(down, customer.target()))
    backend = EventBackend("customers", own, config, Metrics.of(own))
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()

    with pytest.raises(TransientSpawnError, match=r"127\.0\.0\.1:1"):
        await backend.spawn(spec_of(config.scaler, agent_id), silent)
    with pytest.raises(DestroyError, match=r"127\.0\.0\.1:1"):
        await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert (await customer.scale_up(agent_id).describe()).status is WorkflowExecutionStatus.COMPLETED
    assert (await customer.scale_down(agent_id).describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_a_teardown_is_only_as_sure_as_its_least_sure_target(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One workflow confirms, one queue only takes it: the whole is accepted, and no more."""
    taken: list[str] = []

    async def take(_self: object, target: object, *_: object) -> None:
        taken.append(str(target))

    monkeypatch.setattr("hatchway.backends.event_aws.AwsDeliveries.send", take)
    queue = "sqs:https://sqs.eu-west-1.amazonaws.com/1/q"
    config = FixedConfig.of(event_scaler(customer.target(), queue))
    backend = EventBackend("customers", own, config, Metrics.of(own))
    customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)
    gone = await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert gone == Accepted()
    assert taken == [queue, queue]


def _other_scaler() -> dict[str, Any]:
    return {"name": "metal", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["metal"]}]}
