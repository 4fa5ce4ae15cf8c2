"""A burst of provisions on a cloud that loses replies, throttles and shows everything late; the worker is a process.

HATCHWAY_EC2_PROVISIONS says how many (100). The promises are the same for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import defaultdict

import pytest
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from hatchway.client import Started
from hatchway.model import AdoptRequest, EndReason, JobResult, ReleaseRequest
from tests.support.fake_ec2.cloud import Machine, report, running_ec2
from tests.support.fake_ec2.mischief import Mischief
from tests.support.fake_ec2.specs import ec2_scaler
from tests.support.namespaces import Namespaces
from tests.support.stack import Stack, running_stack
from tests.support.worker_process import running_worker

PROVISIONS = int(os.environ.get("HATCHWAY_EC2_PROVISIONS", "100"))
CAP = 40
WAITING = 10
"""Jobs in the line beside those that have an instance."""
LOST, THROTTLED, LATE_S = 0.10, 0.05, 1.0
CALLS_EACH = 6.0
PATIENCE = 300.0


@pytest.mark.scenario("S01", "S03", "S38")
@pytest.mark.timeout(120 + 6 * PROVISIONS)
async def test_each_of_many_provisions_has_one_instance_and_leaves_none(
    namespaces: Namespaces, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mischief = Mischief(lost=LOST, throttled=THROTTLED, late_s=LATE_S, shutdown_s=1.0)
    with running_ec2(mischief, boots=False) as cloud:
        offers = [{"instanceType": "m7i.large", "spot": True}, {"instanceType": "m7i.large"}]
        scaler = ec2_scaler(cloud.url, maxAgents=CAP, maxConcurrentSpawns=20, ec2={"offers": offers})
        config = {"version": 1, "scalers": [scaler]}
        launched, loop = defaultdict[str, asyncio.Event](asyncio.Event), asyncio.get_running_loop()

        def note(agent_id: str) -> None:
            launched[agent_id].set()

        def tell(machine: Machine) -> None:
            loop.call_soon_threadsafe(note, machine.agent_id)

        cloud.made = tell
        async with (
            running_stack(namespaces, database_url, config, with_worker=False) as stack,
            running_worker(stack),
        ):
            begun, room = time.monotonic(), asyncio.Semaphore(CAP + WAITING)
            started = await asyncio.gather(*(_one(stack, launched, number, room) for number in range(PROVISIONS)))
            await stack.nothing_left()
            took = time.monotonic() - begun

        calls = cloud.calls.total() / PROVISIONS
        said = f"{PROVISIONS} provisions in {took:.0f} s, {calls:.2f} calls each, {cloud.most} at once: {report(cloud)}"
        with capsys.disabled():
            print(f"\n{said}")
        assert [len(cloud.of(one.agent_id)) for one in started] == [1] * PROVISIONS
        assert len(cloud.machines) == PROVISIONS
        assert cloud.there() == []
        assert cloud.most <= CAP
        assert calls <= CALLS_EACH
        assert min(cloud.faults["lost"], cloud.faults["throttled"]) > 0, "nothing was shown: no fault came"


async def _one(
    stack: Stack, launched: defaultdict[str, asyncio.Event], number: int, room: asyncio.Semaphore
) -> Started:  # fmt: skip
    """A provision whose agent reports in as soon as its instance is there, and completes at once."""
    async with room:
        started = await stack.provision(job_id=f"job-{number}")
        await asyncio.wait_for(launched[started.agent_id].wait(), PATIENCE)
        registration = f"r-{number}"
        await _adopt(stack, started, registration)
        await stack.outcomes.complete(started.agent_id, registration, "succeeded", 0)
        await stack.temporal.get_workflow_handle(started.workflow_id).signal(
            "release", ReleaseRequest(agent_id=started.agent_id, reason=EndReason.COMPLETED, by="test", now=False)
        )
        outcome = await asyncio.wait_for(stack.hatchway.outcome(started), PATIENCE)
        assert outcome.result is JobResult.SUCCEEDED
        return started


async def _adopt(stack: Stack, started: Started, registration: str) -> None:
    """As an agent does: a gateway that cannot get through now is asked again."""
    handle = stack.temporal.get_workflow_handle(started.workflow_id)
    ask = AdoptRequest(agent_id=started.agent_id, instance_id="gateway-1", registration_id=registration)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await handle.execute_update("adopt", ask, id=f"{registration}-{uuid.uuid4().hex}")
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
                await asyncio.sleep(1)
            else:
                return
