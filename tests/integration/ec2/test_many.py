"""A burst of provisions on a cloud that loses replies, throttles and shows everything late.

HATCHWAY_EC2_PROVISIONS says how many (100). The promises are the same for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid

import pytest

from hatchway.backends import ec2
from hatchway.backends.ec2 import Pace
from hatchway.client import Started
from hatchway.model import AdoptRequest, EndReason, JobResult, ReleaseRequest
from tests.support.fake_ec2.cloud import FakeEc2, report, running_ec2
from tests.support.fake_ec2.mischief import Mischief
from tests.support.fake_ec2.specs import ec2_scaler
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, running_stack

PROVISIONS = int(os.environ.get("HATCHWAY_EC2_PROVISIONS", "100"))
AT_ONCE = 60
CAP = 40
LOST, THROTTLED, LATE_S = 0.10, 0.05, 1.0
CALLS_EACH = 6.0
PACE = Pace(visible_after=3 * LATE_S, poll=5.0, look_every=0.5, longest_pause=2.0)
PATIENCE = 300.0


@pytest.mark.scenario("S01", "S03", "S38")
@pytest.mark.timeout(60 + 6 * PROVISIONS)
async def test_each_of_many_provisions_has_one_instance_and_leaves_none(
    namespaces: Namespaces, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ec2, "PACE", PACE)
    mischief = Mischief(lost=LOST, throttled=THROTTLED, late_s=LATE_S, shutdown_s=1.0)
    with running_ec2(mischief, boots=False) as cloud:
        offers = [{"instanceType": "m7i.large", "spot": True}, {"instanceType": "m7i.large"}]
        scaler = ec2_scaler(cloud.url, maxAgents=CAP, maxConcurrentSpawns=20, ec2={"offers": offers})
        async with running_stack(namespaces, database_url, {"version": 1, "scalers": [scaler]}) as stack:
            begun, room = time.monotonic(), asyncio.Semaphore(AT_ONCE)
            started = await asyncio.gather(*(_one(stack, cloud, number, room) for number in range(PROVISIONS)))
            await stack.nothing_left()
            took = time.monotonic() - begun

        calls = cloud.calls.total() / PROVISIONS
        with capsys.disabled():
            print(f"\n{PROVISIONS} provisions in {took:.0f} s, {calls:.2f} calls each: {report(cloud)}")
        made = [len(cloud.of(one.agent_id)) for one in started]
        assert made == [1] * PROVISIONS
        assert len(cloud.machines) == PROVISIONS
        assert cloud.there() == []
        assert cloud.most <= CAP
        assert calls <= CALLS_EACH


async def _one(stack: Stack, cloud: FakeEc2, number: int, room: asyncio.Semaphore) -> Started:
    """A provision whose agent reports in as soon as its instance is there, and completes at once."""
    async with room:
        started = await stack.provision(job_id=f"job-{number}")
        await until(lambda: cloud.live(started.agent_id), PATIENCE, f"an instance for job-{number}")
        handle = stack.temporal.get_workflow_handle(started.workflow_id)
        registration = f"r-{number}"
        adopt = AdoptRequest(agent_id=started.agent_id, instance_id="gateway-1", registration_id=registration)
        await handle.execute_update("adopt", adopt, id=f"{registration}-{uuid.uuid4().hex}")
        await stack.outcomes.complete(started.agent_id, registration, "succeeded", 0)
        await handle.signal(
            "release", ReleaseRequest(agent_id=started.agent_id, reason=EndReason.COMPLETED, by="test", now=False)
        )
        outcome = await asyncio.wait_for(stack.hatchway.outcome(started), PATIENCE)
        assert outcome.result is JobResult.SUCCEEDED
        return started
