"""The whole path by targets that only take an event: signed requests and a queue, with a receiver behind each."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from examples.customer_workflows.machines import Machines, Unwanted
from hatchway.backends import event
from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.event_signatures import verify
from hatchway.events import ScaleDown, ScaleUp
from hatchway.model import EndReason, JobResult, TeardownState
from tests.support.aws import IDENTITY, REGION, aws_stand_in
from tests.support.customer import event_scaler
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, running_stack
from tests.support.tls_receiver import Receiver, a_receiver, answer, silence
from workflows import taking_down, teardown

KEY = "signing-key-of-the-test-0123456789"


@dataclass
class Consumer:
    """Takes bodies from where they have arrived, and boots or deletes. A test may have it look twice, or backwards."""

    arrived: Callable[[], list[bytes]]
    machines: Machines
    bodies: list[bytes] = field(default_factory=list)

    async def take(self, at_least: int) -> list[bytes]:
        async def there() -> bool:
            self.bodies += await asyncio.to_thread(self.arrived)
            return len(self.bodies) >= at_least

        await until(there, what="events")
        taken, self.bodies = self.bodies, []
        return taken

    async def work(self, *bodies: bytes) -> None:
        for body in bodies:
            if b'"reason"' in body:
                await asyncio.to_thread(self.machines.delete, ScaleDown.model_validate_json(body).agent_id)
            else:
                wanted = ScaleUp.model_validate_json(body)
                await asyncio.to_thread(self.machines.boot, wanted, wanted.claim_code)


@dataclass
class Scene:
    stack: Stack
    consumers: dict[str, Consumer]
    receiver: Receiver


@pytest.fixture(scope="module")
async def scene(
    namespaces: Namespaces, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("messages")
    machines = Machines(directory / "machines")
    with aws_stand_in() as endpoint, pytest.MonkeyPatch.context() as environ:
        for name, value in {**IDENTITY, "HATCHWAY_SECRET_KEY": KEY}.items():
            environ.setenv(name, value)
        sqs = boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)
        url = sqs.create_queue(QueueName=f"q-{uuid.uuid4().hex[:12]}")["QueueUrl"]
        async with a_receiver(directory, name="127.0.0.1") as receiver:
            config = event_scaler(
                {"scaleUp": f"sqs:{url}", "region": REGION},
                label="sqs",
                secrets={"contexts": {"hooks": {"type": "env", "targets": ["127.0.0.1"]}}},
            )
            https = {
                "scaleUp": f"https://127.0.0.1:{receiver.port}/", "signingSecret": "hooks:key",
                "caFile": str(receiver.ca_file), "allowAddresses": ["127.0.0.1/32"],
            }  # fmt: skip
            (first,) = config["scalers"]
            # The last two apart: what they fail with would have another one backing off for the rest of the tests.
            config["scalers"] += [
                {**first, "name": name, "labelSets": [{"labels": [name]}], "provisioningTargets": [https], **more}
                for name, more in (("https", {}), ("refused", {}), ("hangs", {"stopGraceSeconds": 0}))
            ]

            def from_queue() -> list[bytes]:
                found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
                for message in found:
                    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                return [message["Body"].encode() for message in found]

            def from_requests() -> list[bytes]:
                taken = [receiver.requests.pop(0) for _ in range(len(receiver.requests))]
                for request in taken:
                    verify(request.headers, request.body, KEY)
                return [request.body for request in taken]

            consumers = {"sqs": Consumer(from_queue, machines), "https": Consumer(from_requests, machines)}
            beats = {"heartbeat_interval": 0.3}
            async with running_stack(namespaces, module_database_url, config, gateway=beats) as stack:
                yield Scene(stack, consumers, receiver)
    for place in (directory / "machines").iterdir():
        machines.delete(place.name)


async def _ended(scene: Scene, started: Started) -> Any:
    try:
        return await asyncio.wait_for(scene.stack.hatchway.outcome(started), 60)
    except ProvisionFailed as e:
        return e


@pytest.mark.parametrize("kind", ["https", "sqs"])
async def test_a_job_is_served_by_a_machine_of_the_receivers(scene: Scene, kind: str) -> None:
    """Each event is worked off twice: redelivered ones change nothing."""
    consumer = scene.consumers[kind]
    started = await scene.stack.provision(labels=[kind], job_id=f"job-{kind}")
    (up,) = await consumer.take(1)

    await consumer.work(up, up)
    await scene.stack.hatchway.wait_adopted(started)
    await scene.stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    outcome = await _ended(scene, started)
    (down,) = await consumer.take(1)
    await consumer.work(down, down)

    assert (outcome.result, outcome.teardown) == (JobResult.SUCCEEDED, TeardownState.ACCEPTED)
    assert json.loads(down)["reason"] == "job-complete"
    assert not consumer.machines.runs(started.agent_id)
    await scene.stack.nothing_left()


@pytest.mark.parametrize("kind", ["https", "sqs"])
async def test_a_receiver_who_is_away_costs_the_adoption_deadline_and_boots_nothing_later(
    scene: Scene, kind: str
) -> None:
    """Both events have arrived when it comes back, and it looks at the later one first."""
    consumer = scene.consumers[kind]
    started = await scene.stack.provision(labels=[kind], job_id=f"job-away-{kind}", adoption_timeout=1)

    failed = await _ended(scene, started)
    up, down = sorted(await consumer.take(2), key=lambda body: b'"reason"' in body)
    await consumer.work(down)
    with pytest.raises(Unwanted):
        await consumer.work(up)

    assert failed.error_type == ErrorType.ADOPTION_TIMEOUT
    assert json.loads(down)["reason"] == "spawn-timeout"
    assert not consumer.machines.runs(started.agent_id)
    await scene.stack.nothing_left()


async def test_a_receiver_who_refuses_is_quoted_where_the_provision_ends(scene: Scene) -> None:
    scene.receiver.answers = [answer(409, b'{"message": "zone b is closed"}'), answer(202)]

    failed = await _ended(scene, await scene.stack.provision(labels=["refused"], job_id="job-refused"))

    assert failed.error_type == ErrorType.SPAWN_FAILED
    assert "zone b is closed" in str(failed)
    await scene.stack.nothing_left()


async def test_a_receiver_that_hangs_is_named_where_the_teardown_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the worker, which has asked it and waits: who reads "nobody polls" looks in the wrong place."""
    for module in (taking_down, teardown):
        monkeypatch.setattr(module, "FIRST_ROUND", timedelta(seconds=5))
    monkeypatch.setattr(event, "DESTROY_S", 1.5)
    scene.receiver.answers = [answer(202), silence]
    started = await scene.stack.provision(labels=["hangs"], job_id="job-hangs", adoption_timeout=1)

    failed = await _ended(scene, started)
    page = await until(lambda: _failed_round(scene, started), what="the teardown's first round in vain")
    scene.receiver.answers = [answer(202)]

    assert failed.error_type == ErrorType.ADOPTION_TIMEOUT
    assert f"https://127.0.0.1:{scene.receiver.port}" in page
    assert "nobody polls" not in page
    await scene.stack.nothing_left()


async def _failed_round(scene: Scene, started: Started) -> str | None:
    """The page of its TeardownWorkflow, once that says that a round has failed."""
    handle = scene.stack.temporal.get_workflow_handle(f"teardown/{started.agent_id}")
    metadata: Any = await handle.query("__temporal_workflow_metadata")
    page = str(metadata.get("currentDetails", "") if isinstance(metadata, dict) else metadata.current_details)
    return page if "last failed round" in page else None
