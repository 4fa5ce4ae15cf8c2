"""A `temporal:` target whose customer is away, slow, failing, told twice, or told in the wrong order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from hatchway.backends import event_temporal
from hatchway.backends.base import Gone
from hatchway.backends.event import EventBackend
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from tests.integration.events import misbehaving
from tests.support.customer import (
    CLAIM,
    Customer,
    FixedConfig,
    Heard,
    a_customer,
    event_scaler,
    facts_of,
    fresh_agent_id,
    silent,
    spec_of,
)
from tests.support.namespaces import Namespaces, until
from tests.support.temporal_fixtures import TemporalServer

SHUTDOWN = ScaleDownReason.SHUTDOWN
SHORT = timedelta(seconds=2)


@pytest.fixture(scope="module")
async def own(namespaces: Namespaces) -> Client:
    return await namespaces.take()


@pytest.fixture(scope="module")
async def shared(namespaces: Namespaces) -> AsyncIterator[Customer]:
    async with a_customer(namespaces, serving=False) as one:
        yield one


@pytest.fixture
async def customer(shared: Customer) -> AsyncIterator[Customer]:
    """One who is away until a test starts them: each test has a task queue of its own."""
    one = replace(shared, queue=f"queue-{fresh_agent_id()}", _running=[])
    yield one
    await one.stop()


def backend_of(own: Client, customer: Customer, **settings: Any) -> tuple[EventBackend, FixedConfig]:
    config = FixedConfig.of(event_scaler(customer.target(**settings)))
    return EventBackend("customers", own, config, Metrics.of(own)), config


async def test_a_spawn_waits_for_a_customer_who_is_slow(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.SlowScaleUp])
    agent_id, said = fresh_agent_id(), Heard()

    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), said))
    await until(lambda: "was started" in said, what="the start")
    assert not spawning.done()
    assert await backend.find(agent_id) is None
    await customer.scale_up(agent_id).signal("go")
    ref = await spawning

    assert (ref.backend, ref.ref, ref.host_id) == ("event", f"scale-up/{agent_id}", "scaler.customers")
    assert await backend.find(agent_id) == ref
    assert CLAIM not in said


async def test_a_customer_who_is_away_is_named_and_waited_for(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()

    with pytest.raises(TransientSpawnError) as raised:
        await backend.spawn(spec_of(config.scaler, agent_id, time_limit=SHORT), silent)
    customer.start(workflows=[misbehaving.QuickScaleUp])
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert raised.value.code is SpawnCode.DAEMON_UNAVAILABLE
    where = f"scale-up/{agent_id} in namespace {customer.temporal.namespace}"
    assert f"{where} had not ended after 1 s" in str(raised.value)
    assert await customer.runs_of(f"scale-up/{agent_id}") == 1


async def test_what_an_absent_customer_keeps_waiting_is_said_to_people(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatchway.backends.event_temporal_calls.LOOK_EVERY", 0.2)
    backend, config = backend_of(own, customer)
    said = Heard()

    with pytest.raises(TransientSpawnError, match=f"no worker has taken it from the task queue {customer.queue}"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id(), time_limit=SHORT), said)

    assert "no worker has taken it" in said


async def test_the_customers_failure_is_the_spawns_with_its_words(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.FailingScaleUp])

    with pytest.raises(PermanentSpawnError, match="failed: no machine in zone b") as raised:
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)

    assert raised.value.code is SpawnCode.PROVISIONER_FAILED


@pytest.mark.scenario("S19")
async def test_a_customer_who_is_full_is_asked_anew_by_the_next_attempt(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()
    customer.start(workflows=[misbehaving.FullScaleUp])
    with pytest.raises(TransientSpawnError, match="all 20 machines are in use") as raised:
        await backend.spawn(spec_of(config.scaler, agent_id), silent)
    assert raised.value.code is SpawnCode.CAPACITY
    await customer.stop()

    customer.start(workflows=[misbehaving.QuickScaleUp])
    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert await customer.runs_of(f"scale-up/{agent_id}") == 2


@pytest.mark.scenario("S01", "S02")
async def test_an_attempt_whose_reply_was_lost_is_joined_or_remembered(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    again = EventBackend("customers", own, config, Metrics.of(own))
    customer.start(workflows=[misbehaving.SlowScaleUp])
    agent_id = fresh_agent_id()

    first = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id, claim="first-claim-code"), silent))
    await until(lambda: _there(customer, agent_id))
    second = asyncio.create_task(again.spawn(spec_of(config.scaler, agent_id, claim="other-claim-code"), silent))
    await customer.scale_up(agent_id).signal("go")
    refs = {await first, await second, await again.spawn(spec_of(config.scaler, agent_id), silent)}

    assert len(refs) == 1
    assert await customer.runs_of(f"scale-up/{agent_id}") == 1


async def _there(customer: Customer, agent_id: str) -> bool:
    try:
        await customer.scale_up(agent_id).describe()
    except RPCError:
        return False
    return True


@pytest.mark.scenario("S18")
async def test_a_cancelled_spawn_cancels_what_it_asked_for(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.SlowScaleUp])
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await until(lambda: _there(customer, agent_id))

    spawning.cancel()
    await asyncio.wait([spawning])

    assert spawning.cancelled()
    described = await customer.scale_up(agent_id).describe()
    assert described.status is WorkflowExecutionStatus.CANCELED


async def test_a_scale_up_that_ends_by_other_means_is_told_apart(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await until(lambda: _there(customer, agent_id))

    await customer.scale_up(agent_id).terminate(reason="maintenance of zone b")

    with pytest.raises(PermanentSpawnError, match="was terminated"):
        await spawning


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
    ("served", "words"),
    [
        ([misbehaving.FailingScaleDown], "failed: the cloud answered 500"),
        ([], "had not ended after"),
    ],
    ids=["failing", "away"],
)
async def test_a_teardown_that_is_not_confirmed_is_no_end_and_is_taken_up_again(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch, served: list[type], words: str
) -> None:
    monkeypatch.setattr(event_temporal, "SCALE_DOWN_S", 1.0)
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

    await customer.scale_down(agent_id).signal("go")

    assert await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN) == Gone()
    assert await customer.runs_of(f"scale-down/{agent_id}") == 1


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

    assert await customer.runs_of(f"scale-down/{agent_id}") == 2


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
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleDown])
    facts = facts_of(config.scaler).model_copy(update={"provisioning_targets": []})

    assert await backend.destroy(fresh_agent_id(), facts, SHUTDOWN) == Gone()

    config.config = FixedConfig.of({**event_scaler(customer.target()), "scalers": [_other_scaler()]}).config
    with pytest.raises(DestroyError, match="has left the configuration"):
        await backend.destroy(fresh_agent_id(), facts, SHUTDOWN)


def _other_scaler() -> dict[str, Any]:
    return {"name": "metal", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["metal"]}]}


@pytest.mark.parametrize("by_another_address", [False, True])
async def test_hatchways_own_namespace_is_never_a_target(
    own: Client, customer: Customer, temporal: TemporalServer, by_another_address: bool
) -> None:
    address = temporal.address.replace("127.0.0.1", "localhost") if by_another_address else None
    intruder = replace(customer, temporal=own)
    backend, config = backend_of(own, intruder, **({"address": address} if address else {}))
    agent_id = fresh_agent_id()

    with pytest.raises(PermanentSpawnError, match="Hatchway's own"):
        await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert not await _there(intruder, agent_id)


async def test_a_customers_own_server_is_reached_at_its_address(
    own: Client, customer: Customer, temporal: TemporalServer
) -> None:
    backend, config = backend_of(own, customer, address=temporal.address)
    customer.start(workflows=[misbehaving.QuickScaleUp])
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert await _there(customer, agent_id)


@pytest.mark.scenario("S07")
async def test_a_server_that_does_not_answer_may_be_asked_again(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer, address="127.0.0.1:1")

    with pytest.raises(TransientSpawnError, match=r"does not answer at 127\.0\.0\.1:1"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
    with pytest.raises(DestroyError, match=r"does not answer at 127\.0\.0\.1:1"):
        await backend.destroy(fresh_agent_id(), facts_of(config.scaler), SHUTDOWN)


async def test_a_namespace_that_is_not_there_is_said_so(own: Client, customer: Customer) -> None:
    theirs = Client(own.service_client, namespace="nobody-made-this")
    backend, config = backend_of(own, replace(customer, temporal=theirs))

    with pytest.raises(PermanentSpawnError, match="nobody-made-this"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)


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


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "with the seal broken"])
async def test_a_claim_is_kept_out_of_history_by_its_seal(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    if not sealed:
        monkeypatch.setattr("hatchway.backends.event.seal_claim", lambda claim, _key, _agent: claim)
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.QuickScaleUp])
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    history = await customer.scale_up(agent_id).fetch_history()
    found = any(CLAIM.encode() in event.SerializeToString() for event in history.events)
    assert found is not sealed


async def test_a_stored_target_without_a_key_gets_no_event(own: Client, customer: Customer) -> None:
    """The check at load refuses it; this is for a configuration that another release has stored."""
    backend, config = backend_of(own, customer, claimKey=None)
    agent_id = fresh_agent_id()

    with pytest.raises(PermanentSpawnError, match="claimKey"):
        await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert not await _there(customer, agent_id)
