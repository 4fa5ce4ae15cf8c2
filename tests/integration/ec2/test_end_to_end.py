"""A provision on an EC2 instance, from the request to the slot: the instance boots the user data that it was given."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from hatchway.backends import ec2
from hatchway.backends.ec2_client import ATTEMPTS
from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.model import JobResult, ProvisionState, TeardownState
from tests.support.fake_ec2.cloud import FakeEc2, Machine
from tests.support.fake_ec2.specs import QUICK, SCALER
from tests.support.fake_ec2.wire import Parameters
from tests.support.namespaces import until
from tests.support.stack import Stack

S = ProvisionState
Run = Callable[..., AbstractAsyncContextManager[Stack]]


async def ended(stack: Stack, started: Started) -> ProvisionFailed:
    try:
        outcome = await stack.hatchway.outcome(started)
    except ProvisionFailed as e:
        return e
    raise AssertionError(f"the provision completed: {outcome}")


async def test_a_job_runs_on_an_instance_that_is_gone_when_it_is_done(stack_of: Run, cloud: FakeEc2) -> None:
    async with stack_of("/bin/sh", "-c", 'echo "$HATCHWAY_JOB_ID"', maxLifetimeSeconds=600) as stack:
        started = await stack.provision(job_id="job-1", run_id="run-1")
        outcome = await stack.hatchway.outcome(started)
        await stack.nothing_left()

    (machine,) = cloud.of(started.agent_id)
    assert (outcome.result, outcome.scaler, outcome.teardown) == (
        JobResult.SUCCEEDED, SCALER, TeardownState.CONFIRMED,
    )  # fmt: skip
    assert machine.state == "terminated"
    assert machine.inside is not None
    assert b"job-1" in machine.inside.console
    assert machine.inside.switched[0] == ["-P", "+26"]  # 300 s until adopted, 600 of work, 30 of grace, 600 beyond
    assert machine.tags["kici-bound-job-id"] == "job-1"
    assert cloud.there() == []


async def test_a_requests_own_times_are_those_of_its_instance(stack_of: Run, cloud: FakeEc2) -> None:
    async with stack_of("true", maxLifetimeSeconds=600) as stack:
        started = await stack.provision(job_id="job-1", max_lifetime=3600, adoption_timeout=7200)
        await stack.hatchway.outcome(started)
        await stack.nothing_left()

    (machine,) = cloud.of(started.agent_id)
    assert machine.inside is not None
    assert machine.inside.switched[0] == ["-P", "+191"]  # 7200 s until adopted, 3600 of work, 30 of grace, 600 beyond


@pytest.mark.scenario("S01", "S03")
async def test_a_lost_grant_that_shows_late_is_found_by_the_next_attempt_though_an_earlier_offer_is_free_again(
    stack_of: Run, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt is told that it is not the first, so it waits for longer than EC2 takes to show an instance."""
    monkeypatch.setattr(ec2, "PACE", replace(QUICK, visible_after=10.0))
    offers = [{"instanceType": "m7i.large", "spot": True}, {"instanceType": "m7i.large"}]

    def late(machine: Machine) -> None:
        machine.shown_at = machine.tagged_at = time.monotonic() + 8
        cloud.mischief.short_of = set()

    async with stack_of(ec2={"offers": offers, "userData": "exec sleep 3600"}) as stack:
        cloud.mischief.remembers_refused = False
        cloud.mischief.short_of, cloud.mischief.lost, cloud.made = {"m7i.large spot"}, 1.0, late
        started = await stack.provision(job_id="job-1")
        await until(lambda: cloud.faults["lost"] == ATTEMPTS, what="a launch whose every reply is lost")
        cloud.mischief.lost = 0.0
        await stack.reaches(started, S.AWAITING_ADOPTION)
        await stack.hatchway.cancel(started.workflow_id)
        await stack.nothing_left()

    (machine,) = cloud.of(started.agent_id)
    assert "InstanceMarketOptions.MarketType" not in machine.asked


@pytest.mark.scenario("S41")
async def test_the_claim_is_in_the_user_data_and_nowhere_else(stack_of: Run, cloud: FakeEc2) -> None:
    leak = 'env; cat /proc/self/environ; echo "$KICI_SCALER_CLAIM_CODE"; sleep 1; exit 1'
    async with stack_of(ec2={"userData": leak}) as stack:
        started = await stack.provision(job_id="job-1")
        failed = await ended(stack, started)
        handle = stack.temporal.get_workflow_handle(started.workflow_id)
        events = [event.SerializeToString() async for event in handle.fetch_history_events()]
        rows = await stack.db.fetch_all("select row_to_json(o)::text from scaler_provision_outcomes o")

    (machine,) = cloud.of(started.agent_id)
    assert machine.inside is not None
    claim = next(line for line in cloud.user_data(machine).splitlines() if "CLAIM_CODE=" in line).partition("=")[2]
    history = [event.decode("utf-8", "replace") for event in events]
    seen = "\n".join(
        (machine.inside.console.decode(), *history, str(rows), str(failed), str(machine.described()))
    )  # fmt: skip
    assert len(claim) > 40
    assert "KICI_SCALER_CLAIM_CODE=[redacted]" in seen
    assert claim not in seen


@pytest.mark.scenario("S24")
async def test_an_instance_that_ec2_takes_back_ends_its_job_with_ec2s_reason(stack_of: Run, cloud: FakeEc2) -> None:
    async with stack_of("sleep", "600") as stack:
        started = await stack.provision(job_id="job-1")
        await stack.reaches(started, S.ACTIVE)
        compute = await stack.compute(started)
        (machine,) = cloud.live(started.agent_id)
        assert machine.inside is not None

        for pid in machine.inside.processes():  # the agent itself could tell of a job that SIGTERM ended
            os.kill(pid, signal.SIGSTOP)
        cloud.end(machine, "Server.SpotInstanceTermination")
        failed = await ended(stack, started)
        await stack.nothing_left()

    assert (compute.ref, compute.host_id) == (machine.id, f"scaler.{SCALER}")
    assert str(compute.endpoint).startswith("eu-central-1")
    assert failed.error_type == ErrorType.AGENT_LOST


@pytest.mark.scenario("S15")
async def test_a_script_that_fails_is_told_with_its_code_and_its_last_words(stack_of: Run, cloud: FakeEc2) -> None:
    async with stack_of(ec2={"userData": "echo no such tool; exit 127"}) as stack:
        failed = await ended(stack, await stack.provision(job_id="job-1"))
        await stack.nothing_left()

    assert "127" in str(failed)
    assert "no such tool" in str(failed)


@pytest.mark.scenario("S16")
async def test_failed_launches_hold_no_slot(stack_of: Run, cloud: FakeEc2) -> None:
    may_answer = threading.Event()

    def hold(action: str, _parameters: Parameters, when: str) -> None:
        if (action, when) == ("DescribeImages", "before"):
            may_answer.wait()

    cloud.held = hold
    async with stack_of(ec2={"ami": "ami-00000000"}, maxAgents=5) as stack:
        started = [await stack.provision(job_id=f"job-{number}") for number in range(5)]

        async def all_hold_slots() -> bool:
            return len(await stack.slots.list()) == 5

        await until(all_hold_slots, what="five slots")  # the first failure makes the scaler back off for all others
        may_answer.set()
        failures = [await ended(stack, one) for one in started]
        await stack.nothing_left()

    assert {failure.error_type for failure in failures} == {ErrorType.SPAWN_FAILED}
    assert all("image_not_found" in str(failure) for failure in failures)
    assert cloud.machines == {}


@pytest.mark.scenario("S04", "S05")
@pytest.mark.parametrize("fault", ["cut off", "EC2 fails"])
async def test_a_slot_is_held_until_ec2_shows_the_instance_gone(stack_of: Run, cloud: FakeEc2, fault: str) -> None:
    async with stack_of("sleep", "600") as stack:
        started = await stack.provision(job_id="job-1")
        await stack.reaches(started, S.ACTIVE)
        if fault == "cut off":
            cloud.cut = True
        else:
            cloud.mischief.refuse("TerminateInstances", "InternalError", status=500, times=1000)

        await stack.hatchway.cancel(started.workflow_id)
        await stack.reaches(started, S.TEARING_DOWN)  # until then, what calls is the watch for ends
        calls = cloud.calls.total()
        await until(lambda: cloud.calls.total() > calls + 3, what="calls of the teardown")
        status, row = await stack.status(started), await stack.slots.get(started.agent_id)
        held = len(cloud.live(started.agent_id))
        cloud.cut, cloud.mischief.refusals = False, []
        await stack.nothing_left()

    assert status.state is S.TEARING_DOWN
    assert row is not None
    assert held == 1
    assert cloud.there() == []


@pytest.mark.scenario("S38")
async def test_a_throttled_account_gets_its_instance_when_ec2_lets_it(stack_of: Run, cloud: FakeEc2) -> None:
    cloud.mischief.refuse("RunInstances", "RequestLimitExceeded", status=503, times=5)
    async with stack_of("true") as stack:
        started = await stack.provision(job_id="job-1")
        outcome = await stack.hatchway.outcome(started)
        await stack.nothing_left()

    assert outcome.result is JobResult.SUCCEEDED
    assert len(cloud.of(started.agent_id)) == 1
