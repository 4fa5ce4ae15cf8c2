"""A `temporal:` target that is asked for an agent: its customer is away, slow, failing, full, or asked twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from hatchway.backends import event_connections
from hatchway.backends.base import Gone
from hatchway.backends.event import EventBackend
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason
from hatchway.namespace import namespace_uuid
from tests.integration.events import misbehaving
from tests.support.customer import (
    CLAIM,
    Customer,
    Heard,
    backend_of,
    facts_of,
    fresh_agent_id,
    silent,
    spec_of,
    was_asked,
)
from tests.support.namespaces import until
from tests.support.temporal_fixtures import TemporalServer

SHUTDOWN = ScaleDownReason.SHUTDOWN
SHORT = timedelta(seconds=2)
SOME_LOOKS = timedelta(seconds=6)
"""For a spawn that is to say what it has seen: a look is a call to the server, which may be slow."""


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
        await backend.spawn(spec_of(config.scaler, fresh_agent_id(), time_limit=SOME_LOOKS), said)

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

    assert await customer.runs_of(f"scale-up/{agent_id}", at_least=2) == 2


@pytest.mark.scenario("S01", "S02")
async def test_an_attempt_whose_reply_was_lost_is_joined_or_remembered(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    again = EventBackend("customers", own, config, Metrics.of(own))
    customer.start(workflows=[misbehaving.SlowScaleUp])
    agent_id = fresh_agent_id()

    first = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id, claim="first-claim-code"), silent))
    await until(lambda: was_asked(customer, agent_id))
    second = asyncio.create_task(again.spawn(spec_of(config.scaler, agent_id, claim="other-claim-code"), silent))
    await customer.scale_up(agent_id).signal("go")
    refs = {await first, await second, await again.spawn(spec_of(config.scaler, agent_id), silent)}

    assert len(refs) == 1
    assert await customer.runs_of(f"scale-up/{agent_id}") == 1


@pytest.mark.scenario("S18")
async def test_a_cancelled_spawn_leaves_what_it_asked_for_to_its_teardown(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.SlowScaleUp, misbehaving.QuickScaleDown])
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await until(lambda: was_asked(customer, agent_id))

    spawning.cancel()
    await asyncio.wait([spawning])
    left = await customer.scale_up(agent_id).describe()
    gone = await backend.destroy(agent_id, facts_of(config.scaler), SHUTDOWN)

    assert spawning.cancelled()
    assert left.status is WorkflowExecutionStatus.RUNNING
    assert gone == Gone()
    described = await customer.scale_up(agent_id).describe()
    assert described.status is WorkflowExecutionStatus.CANCELED
    assert (await customer.scale_down(agent_id).describe()).status is WorkflowExecutionStatus.COMPLETED


@pytest.mark.scenario("S01", "S18")
async def test_a_spawn_that_was_handed_back_is_joined_by_the_next_attempt(own: Client, customer: Customer) -> None:
    """The customer is booting the machine: it must neither be stopped nor asked for a second one."""
    backend, config = backend_of(own, customer)
    customer.start(workflows=[misbehaving.SlowScaleUp])
    agent_id = fresh_agent_id()
    handed_back = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await until(lambda: was_asked(customer, agent_id))
    handed_back.cancel()
    await asyncio.wait([handed_back])

    joining = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await customer.scale_up(agent_id).signal("go")
    ref = await joining

    assert await backend.find(agent_id) == ref
    assert await customer.runs_of(f"scale-up/{agent_id}") == 1


@pytest.mark.scenario("S18")
async def test_a_start_that_is_on_its_way_is_waited_for(
    own: Client, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would reach the server after the teardown's cancel, and nobody would cancel it any more."""
    backend, config = backend_of(own, customer)
    on_its_way, may_arrive = asyncio.Event(), asyncio.Event()
    start = Client.start_workflow

    async def slowly(self: Client, *args: Any, **keys: Any) -> Any:
        on_its_way.set()
        await may_arrive.wait()
        return await start(self, *args, **keys)

    monkeypatch.setattr(Client, "start_workflow", slowly)
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await on_its_way.wait()

    spawning.cancel()
    await asyncio.wait([spawning], timeout=0.3)
    still_waits = not spawning.done()
    may_arrive.set()
    await asyncio.wait([spawning])

    assert still_waits
    assert spawning.cancelled()
    assert await was_asked(customer, agent_id)


async def test_a_scale_up_that_ends_by_other_means_is_told_apart(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    agent_id = fresh_agent_id()
    spawning = asyncio.create_task(backend.spawn(spec_of(config.scaler, agent_id), silent))
    await until(lambda: was_asked(customer, agent_id))

    await customer.scale_up(agent_id).terminate(reason="maintenance of zone b")

    with pytest.raises(PermanentSpawnError, match="was terminated"):
        await spawning


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

    assert not await was_asked(intruder, agent_id)


async def test_a_namespace_that_has_become_hatchways_own_is_no_target_any_more(
    own: Client, customer: Customer, temporal: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address may lead somewhere else one day; a connection that is kept follows it there."""
    backend, config = backend_of(own, customer, address=temporal.address)
    customer.start(workflows=[misbehaving.QuickScaleUp])
    await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)
    uuid = await namespace_uuid(own)

    async def moved(asked: Client) -> str:
        return uuid

    monkeypatch.setattr(event_connections, "namespace_uuid", moved)
    agent_id = fresh_agent_id()
    with pytest.raises(PermanentSpawnError, match="Hatchway's own"):
        await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert not await was_asked(customer, agent_id)


async def test_a_customers_own_server_is_reached_at_its_address(
    own: Client, customer: Customer, temporal: TemporalServer
) -> None:
    backend, config = backend_of(own, customer, address=temporal.address)
    customer.start(workflows=[misbehaving.QuickScaleUp])
    agent_id = fresh_agent_id()

    await backend.spawn(spec_of(config.scaler, agent_id), silent)

    assert await was_asked(customer, agent_id)


async def test_a_namespace_that_is_not_there_is_said_so(own: Client, customer: Customer) -> None:
    theirs = Client(own.service_client, namespace="nobody-made-this")
    backend, config = backend_of(own, replace(customer, temporal=theirs))

    with pytest.raises(PermanentSpawnError, match="nobody-made-this"):
        await backend.spawn(spec_of(config.scaler, fresh_agent_id()), silent)


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

    assert not await was_asked(customer, agent_id)


async def test_a_stored_scaler_without_targets_asks_nobody_and_says_so(own: Client, customer: Customer) -> None:
    backend, config = backend_of(own, customer)
    without = config.scaler.model_copy(update={"provisioning_targets": []})

    with pytest.raises(PermanentSpawnError, match="nobody would be asked"):
        await backend.spawn(spec_of(without, fresh_agent_id()), silent)
