"""The whole path by targets that only take an event: signed requests and a queue, with a receiver behind each."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.customer_workflows.machines import Machines, Unwanted
from hatchway.backends import event
from hatchway.client import ProvisionFailed, Started
from hatchway.errors import ErrorType
from hatchway.event_signatures import verify
from hatchway.events import ScaleDown, ScaleUp
from hatchway.model import EndReason, JobResult, ProvisionState, TeardownState
from tests.integration.events.brokers import KINDS, Broker
from tests.support.aws import IDENTITY, aws_stand_in
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
    brokers: dict[str, Broker]
    leaving: dict[str, Broker]
    """Of scalers of their own, since a target that is taken away has its scaler backing off."""


@pytest.fixture(scope="module")
async def scene(
    namespaces: Namespaces, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    directory: Path = tmp_path_factory.mktemp("messages")
    machines = Machines(directory / "machines")
    with aws_stand_in() as endpoint, pytest.MonkeyPatch.context() as environ:
        for name, value in {**IDENTITY, "HATCHWAY_SECRET_KEY": KEY}.items():
            environ.setenv(name, value)
        brokers, leaving = ({kind: Broker(kind, endpoint) for kind in KINDS} for _ in range(2))
        async with a_receiver(directory, name="127.0.0.1") as receiver:
            config = event_scaler(
                brokers["sqs"].target,
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
            config["scalers"] += [
                {**first, "name": name, "labelSets": [{"labels": [name]}], "provisioningTargets": [broker.target]}
                for name, broker in (
                    ("sns", brokers["sns"]),
                    ("eventbridge", brokers["eventbridge"]),
                    *((f"{kind}-leaving", leaving[kind]) for kind in KINDS),
                )
            ]

            def from_requests() -> list[bytes]:
                taken = [receiver.requests.pop(0) for _ in range(len(receiver.requests))]
                for request in taken:
                    verify(request.headers, request.body, KEY)
                return [request.body for request in taken]

            consumers = {kind: Consumer(broker.arrived, machines) for kind, broker in brokers.items()}
            consumers["https"] = Consumer(from_requests, machines)
            beats = {"heartbeat_interval": 0.3}
            async with running_stack(namespaces, module_database_url, config, gateway=beats) as stack:
                yield Scene(stack, consumers, receiver, brokers, leaving)
    for place in (directory / "machines").iterdir():
        machines.delete(place.name)


async def _ended(scene: Scene, started: Started) -> Any:
    try:
        return await asyncio.wait_for(scene.stack.hatchway.outcome(started), 60)
    except ProvisionFailed as e:
        return e


@pytest.mark.parametrize("kind", ["https", *KINDS])
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_receiver_who_is_slow_and_fails_at_first_serves_before_the_adoption_deadline(
    scene: Scene, kind: str
) -> None:
    """What was taken and not worked off comes once more, the same event."""
    consumer, broker = scene.consumers[kind], scene.brokers[kind]
    started = await scene.stack.provision(labels=[kind], job_id=f"job-slow-{kind}")
    seen = await until(lambda: asyncio.to_thread(broker.arrived_at_one_who_fails), what="the event")
    await scene.stack.reaches(started, ProvisionState.AWAITING_ADOPTION)

    (up,) = await consumer.take(1)
    await consumer.work(up)
    await scene.stack.hatchway.wait_adopted(started)
    await scene.stack.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED)
    outcome = await _ended(scene, started)
    (down,) = await consumer.take(1)
    await consumer.work(down)

    assert seen == [up]
    assert (outcome.result, outcome.teardown) == (JobResult.SUCCEEDED, TeardownState.ACCEPTED)
    await scene.stack.nothing_left()


@pytest.mark.parametrize("kind", ["https", *KINDS])
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_target_that_was_taken_away_is_named_with_the_services_word_and_torn_down_once_it_is_back(
    scene: Scene, kind: str
) -> None:
    broker = scene.leaving[kind]
    await asyncio.to_thread(broker.remove)
    started = await scene.stack.provision(labels=[f"{kind}-leaving"], job_id=f"job-leaving-{kind}")

    await scene.stack.reaches(started, ProvisionState.TEARING_DOWN)
    page = await _page(scene, started)
    await asyncio.to_thread(broker.make)
    failed = await _ended(scene, started)

    assert failed.error_type == ErrorType.SPAWN_FAILED
    for said in (" ".join(page.split()), str(failed)):
        assert f"{broker.target['scaleUp']}: AWS refused" in said
        assert re.search(r"NonExistentQueue|NotFound", said)
    (down,) = await Consumer(broker.arrived, scene.consumers[kind].machines).take(1)
    assert json.loads(down)["reason"] == "spawn-timeout"
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
    page = await _page(scene, started, f"teardown/{started.agent_id}")
    return page if "last failed round" in page else None


async def _page(scene: Scene, started: Started, workflow_id: str | None = None) -> str:
    """The current details of its workflow, or of another."""
    handle = scene.stack.temporal.get_workflow_handle(workflow_id or started.workflow_id)
    metadata: Any = await handle.query("__temporal_workflow_metadata")
    return str(metadata.get("currentDetails", "") if isinstance(metadata, dict) else metadata.current_details)
