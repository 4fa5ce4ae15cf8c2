"""The whole path by Temporal: a job, a customer's workflow, a machine that registers, works, and is deleted; and every
reason for which it is. Hatchway's worker and gateway, the customer's worker, and the agents are the real ones.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.metrics import Metrics
from hatchway.model import (
    EndReason,
    JobResult,
    ProvisionState,
    ScaleDownReason,
    SweepOutcome,
    SweepRequest,
    TeardownState,
)
from hatchway.reaping import Windows
from hatchway.store.reaping import Reaping
from hatchway.task_queues import CONTROL
from tests.integration.events import misbehaving
from tests.support.chaos.processes import signal_agent
from tests.support.customer import Customer, event_scaler
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, running_stack

S = ProvisionState
R = ScaleDownReason
FLAP_GRACE_S = 1


@pytest.fixture(scope="module")
async def idle_customer(served: Customer) -> AsyncIterator[Customer]:
    """One whose workflows complete and boot nothing, and whose failures a test may choose."""
    one = replace(served, queue=f"nothing-{uuid.uuid4().hex}", _running=[])
    one.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    yield one
    await one.stop()


@pytest.fixture(scope="module")
async def failing_customer(served: Customer) -> AsyncIterator[Customer]:
    one = replace(served, queue=f"failing-{uuid.uuid4().hex}", _running=[])
    one.start(workflows=[misbehaving.FailingScaleUp, misbehaving.QuickScaleDown])
    yield one
    await one.stop()


@pytest.fixture(scope="module")
async def stubborn_customer(served: Customer) -> AsyncIterator[Customer]:
    one = replace(served, queue=f"stubborn-{uuid.uuid4().hex}", _running=[])
    one.start(workflows=[misbehaving.QuickScaleUp, misbehaving.FailingScaleDown])
    yield one
    await one.stop()


@pytest.fixture(scope="module")
async def stack(
    namespaces: Namespaces,
    module_database_url: str,
    served: Customer,
    idle_customer: Customer,
    failing_customer: Customer,
    stubborn_customer: Customer,
) -> AsyncIterator[Stack]:
    """Four scalers: `linux` is served by the example, the others by customers who boot nothing."""
    config = event_scaler(served.target())
    (first,) = config["scalers"]
    others = {"nothing": idle_customer, "failing": failing_customer, "stubborn": stubborn_customer}
    config["scalers"] += [
        {**first, "name": name, "labelSets": [{"labels": [name]}], "provisioningTargets": [one.target()]}
        for name, one in others.items()
    ]
    config["reaper"] = {"flapGraceSeconds": FLAP_GRACE_S}
    beats = {"heartbeat_interval": 0.3, "idle_heartbeat": 0.3}
    async with running_stack(namespaces, module_database_url, config, gateway=beats) as running:
        yield running


async def _adopted(stack: Stack, **request: Any) -> Started:
    started = await stack.provision(**request)
    await stack.hatchway.wait_adopted(started)
    return started


async def test_a_job_is_served_by_a_machine_of_the_customers(stack: Stack, served: Customer) -> None:
    started = await _adopted(stack, job_id="job-1", run_id="run-1", resources={"cpus": 0.5, "memory": "1Gi"})

    assert served.machines.runs(started.agent_id)
    await stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    outcome = await stack.hatchway.outcome(started)

    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
    assert outcome.teardown is TeardownState.CONFIRMED
    assert not served.machines.runs(started.agent_id)
    up = await served.event_of(served.scale_up(started.agent_id))
    assert (up["scalerName"], up["jobId"], up["requestId"]) == ("customers", "job-1", f"{started.agent_id}:scale-up")
    assert up["resources"] == {"cpus": 0.5, "memBytes": 1 << 30}
    assert up["claimCode"].startswith("sealed.v1.")
    assert {"linux", "kici:scaler:customers"} <= set(up["labels"])


# ── every reason ────────────────────────────────────────────────────────────────────────────────────────────────


async def _completes(stack: Stack) -> Started:
    started = await _adopted(stack, job_id=f"job-{uuid.uuid4().hex}")
    await stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    return started


async def _is_idle(stack: Stack) -> Started:
    started = await _adopted(stack)
    await stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.IDLE)
    return started


async def _is_drained(stack: Stack) -> Started:
    started = await _adopted(stack)
    await stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    return started


async def _is_cancelled(stack: Stack) -> Started:
    started = await _adopted(stack, job_id=f"job-{uuid.uuid4().hex}")
    await stack.hatchway.cancel(started.workflow_id)
    return started


async def _does_not_come(stack: Stack) -> Started:
    return await stack.provision(labels=["nothing"], adoption_timeout=1)


async def _falls_silent(stack: Stack) -> Started:
    """The machine dies; half an hour later the reaper has had enough."""
    started = await _adopted(stack, job_id=f"job-{uuid.uuid4().hex}")
    assert signal_agent(started.agent_id, signal.SIGKILL)
    await until(lambda: _gateway_could_have_heard(stack), what="a gateway alive for the flap grace")

    async def condemned() -> bool:
        # A heartbeat that was on its way when the machine died may be written after this, and count.
        await stack.db.fetch_all(
            """
            update scaler_agent_presence set last_seen_at = now() - interval '31 minutes' where agent_id = %(agent_id)s
            """,
            {"agent_id": started.agent_id},
        )
        await _sweep(stack)
        row = await stack.slots.get(started.agent_id)
        return row is None or row.closing

    await until(condemned, what="the reaper's verdict")
    return started


async def _gateway_could_have_heard(stack: Stack) -> bool:
    windows = Windows(flap_grace=timedelta(seconds=FLAP_GRACE_S))
    return not (await Reaping(stack.db).sight(windows)).blocked


async def _sweep(stack: Stack) -> SweepOutcome:
    outcome: SweepOutcome = await stack.temporal.execute_workflow(
        "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL, result_type=SweepOutcome
    )
    return outcome


REASONS: dict[ScaleDownReason, Callable[[Stack], Awaitable[Started]]] = {
    R.JOB_COMPLETE: _completes,
    R.IDLE: _is_idle,
    R.DRAIN: _is_drained,
    R.SHUTDOWN: _is_cancelled,
    R.SPAWN_TIMEOUT: _does_not_come,
    R.HEARTBEAT_TIMEOUT: _falls_silent,
}


def test_every_reason_has_its_end() -> None:
    assert set(REASONS) == set(ScaleDownReason)


@pytest.mark.scenario("S48")
@pytest.mark.parametrize("reason", REASONS)
async def test_the_customer_is_told_why(
    stack: Stack, served: Customer, reason: ScaleDownReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Metrics, "scale_down_emitted", lambda _, reason: counted.append(reason))

    started = await REASONS[reason](stack)
    await _ended(stack, started)

    assert await served.event_of(served.scale_down(started.agent_id)) == {
        "scalerName": "nothing" if reason is R.SPAWN_TIMEOUT else "customers", "agentId": started.agent_id,
        "reason": reason.value, "requestId": f"{started.agent_id}:scale-down",
    }  # fmt: skip
    assert counted == [reason.value]
    assert not served.machines.runs(started.agent_id)


async def _ended(stack: Stack, started: Started) -> ProvisionFailed | None:
    """Wait for the end, whatever it is, and for the slot."""
    try:
        await asyncio.wait_for(stack.hatchway.outcome(started), 60)
    except ProvisionFailed as e:
        failed: ProvisionFailed | None = e
    else:
        failed = None

    async def gone() -> bool:
        return await stack.slots.get(started.agent_id) is None

    await until(gone, what="the slot")
    return failed


# ── what a customer does wrong ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scenario("S15")
async def test_the_reason_that_the_customer_gave_is_how_the_provision_ends_and_on_its_page(
    stack: Stack, served: Customer
) -> None:
    started = await stack.provision(labels=["failing"], job_id="job-fails")

    failed = await _ended(stack, started)

    assert failed is not None
    assert failed.error_type == ErrorType.SPAWN_FAILED
    assert "no machine in zone b" in str(failed)
    page = await stack.temporal.get_workflow_handle(started.workflow_id).query("__temporal_workflow_metadata")
    assert "no machine in zone b" in str(page)
    assert (await served.event_of(served.scale_down(started.agent_id)))["reason"] == "spawn-timeout"


@pytest.mark.scenario("S04", "S05")
async def test_a_teardown_that_the_customer_fails_keeps_the_slot_and_is_taken_up_again(
    stack: Stack, stubborn_customer: Customer
) -> None:
    started = await stack.provision(labels=["stubborn"], job_id="job-stubborn", adoption_timeout=1)
    handle = stack.temporal.get_workflow_handle(started.workflow_id)

    async def said() -> list[str]:
        pending = (await handle.describe()).raw_description.pending_activities
        return [one.last_failure.message for one in pending if one.HasField("last_failure")]

    words = await until(said, what="a failed attempt of the teardown")
    row = await stack.slots.get(started.agent_id)
    await stubborn_customer.stop()
    stubborn_customer.start(workflows=[misbehaving.QuickScaleUp, misbehaving.QuickScaleDown])
    failed = await _ended(stack, started)

    assert "the cloud answered 500" in words[0]
    assert row is not None
    assert row.closing
    assert failed is not None
    assert failed.error_type == ErrorType.ADOPTION_TIMEOUT


@pytest.mark.scenario("S20")
async def test_a_job_that_is_offered_again_boots_one_machine(stack: Stack, served: Customer) -> None:
    offers = await asyncio.gather(*(stack.provision(job_id="job-offered-often") for _ in range(3)))
    started = offers[0]
    await stack.hatchway.wait_adopted(started)

    assert {offer.agent_id for offer in offers} == {started.agent_id}
    assert await served.runs_of(f"scale-up/{started.agent_id}") == 1
    await stack.hatchway.cancel(started.workflow_id)
    await _ended(stack, started)


async def test_a_row_knows_its_targets_when_the_configuration_does_not(stack: Stack, served: Customer) -> None:
    started = await _adopted(stack, job_id="job-remembered")

    row = await stack.slots.get(started.agent_id)
    await stack.hatchway.cancel(started.workflow_id)
    await _ended(stack, started)

    assert row is not None
    assert row.host_id == "scaler.customers"
    assert row.teardown_facts is not None
    assert row.teardown_facts.provisioning_targets == row.provisioning_targets != []
    assert served.private_key not in str(row.provisioning_targets)
