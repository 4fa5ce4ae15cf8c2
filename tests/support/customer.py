"""A customer's side of the events, as the example has it; it can be away, and be replaced by one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Worker

from examples.customer_workflows.activities import ProvisioningActivities
from examples.customer_workflows.machines import Machines
from examples.customer_workflows.worker import worker
from hatchway.backends.base import SpawnSpec
from hatchway.backends.event import EventBackend
from hatchway.config.schema import Config, Scaler
from hatchway.metrics import Metrics
from hatchway.model import TeardownFacts
from hatchway.sealed_claims import new_claim_keys
from hatchway.secrets.resolver import SecretResolver
from tests.support.namespaces import Namespaces, until


@dataclass
class Customer:
    temporal: Client
    """Of their namespace, with no converter but the SDK's own."""
    machines: Machines
    directory: Path
    private_key: str = field(repr=False)
    claim_key: str
    queue: str = field(default_factory=lambda: f"provisioning-{uuid.uuid4().hex[:8]}")
    _running: list[tuple[Worker, asyncio.Task[None]]] = field(default_factory=list)

    @property
    def activities(self) -> ProvisioningActivities:
        return ProvisioningActivities(self.machines, [self.private_key])

    @property
    def running(self) -> bool:
        return bool(self._running)

    def start(self, *, workflows: Sequence[type] | None = None) -> None:
        """Serve: the example's workflows, or other ones in their place, over the same activities."""
        if workflows is None:
            served = worker(self.temporal, self.queue, self.activities)
        else:
            activities = [self.activities.boot, self.activities.delete]
            served = Worker(self.temporal, task_queue=self.queue, workflows=workflows, activities=activities)
        self._running.append((served, asyncio.create_task(served.run())))

    async def stop(self) -> None:
        """Be away."""
        while self._running:
            served, task = self._running.pop()
            await served.shutdown()
            await task

    def target(self, up: str = "ScaleUp", down: str | None = "ScaleDown", **settings: Any) -> dict[str, Any]:
        """A `temporal:` target of this customer's workflows."""
        place = f"temporal:{self.temporal.namespace}/{self.queue}"
        target = {"scaleUp": f"{place}/{up}", "claimKey": self.claim_key, **settings}
        return target | ({"scaleDown": f"{place}/{down}"} if down else {})

    def scale_up(self, agent_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(f"scale-up/{agent_id}")

    def scale_down(self, agent_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(f"scale-down/{agent_id}")

    async def event_of(self, handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
        """What a workflow was started with."""
        history = await handle.fetch_history()
        payload = history.events[0].workflow_execution_started_event_attributes.input.payloads[0]
        event: dict[str, Any] = json.loads(payload.data)
        return event

    async def runs_of(self, workflow_id: str, at_least: int = 1) -> int:
        """How many runs there have been under this id, as soon as the server's index shows at least so many."""

        async def listed() -> int | None:
            query = f'WorkflowId = "{workflow_id}"'
            shown = len([run async for run in self.temporal.list_workflows(query)])
            return shown if shown >= at_least else None

        count: int = await until(listed, what=f"a run of {workflow_id}")
        return count

    def end_all(self) -> None:
        """No agent outlives its test."""
        for place in self.directory.iterdir():
            self.machines.delete(place.name)


@asynccontextmanager
async def a_customer(
    namespaces: Namespaces, *, command: Sequence[str] = (), serving: bool = True
) -> AsyncIterator[Customer]:
    """A customer with a namespace of their own. Their agents run `command`, or serve until they are drained."""
    private, public = new_claim_keys()
    theirs = await namespaces.take()
    async with AsyncExitStack() as exits:
        directory = Path(tempfile.mkdtemp(prefix="customer-"))
        exits.callback(shutil.rmtree, directory, ignore_errors=True)
        environment = {"HATCHWAY_AGENT_COMMAND": json.dumps(list(command))} if command else {}
        client = Client(theirs.service_client, namespace=theirs.namespace, data_converter=DataConverter.default)
        customer = Customer(client, Machines(directory, environment), directory, private, public)
        exits.callback(customer.end_all)
        exits.push_async_callback(customer.stop)
        if serving:
            customer.start()
        yield customer


def event_scaler(
    *targets: Any, label: str = "linux", secrets: dict[str, Any] | None = None, **scaler: Any
) -> dict[str, Any]:
    """A configuration of one event scaler, `customers`, with these targets; `scaler` overrides its keys."""
    return {
        "version": 1,
        **({"secrets": secrets} if secrets else {}),
        "scalers": [
            {
                "name": "customers", "type": "event", "maxAgents": 8, "labelSets": [{"labels": [label]}],
                "provisioningTargets": list(targets), **scaler,
            }
        ],
    }  # fmt: skip


CLAIM = "claim-T0pS3cret/with+odd=signs"


@dataclass
class FixedConfig:
    """A configuration in force that a test may replace, and the environment that its secrets are in."""

    config: Config
    environ: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: dict[str, Any], **environ: str) -> FixedConfig:
        return cls(Config.model_validate(document), environ)

    @property
    def scaler(self) -> Scaler:
        return self.config.scalers[0]

    async def current(self) -> tuple[int, Config]:
        return 1, self.config

    def resolver(self, config: Config) -> SecretResolver:
        return SecretResolver(config.secrets, self.environ)


def spec_of(
    scaler: Scaler, agent_id: str, url: str = "http://127.0.0.1:1", claim: str = CLAIM, **keys: Any
) -> SpawnSpec:
    """What the spawn activity would hand to the backend."""
    return SpawnSpec(
        agent_id=agent_id,
        scaler=scaler,
        label_set=scaler.label_sets[0],
        labels=("linux", "kici:scaler:customers"),
        installation_id="installation-1",
        env={"KICI_ORCHESTRATOR_URL": url, "KICI_SCALER_CLAIM_CODE": claim},
        secret_values=frozenset({claim}),
        **keys,
    )


def facts_of(scaler: Scaler) -> TeardownFacts:
    """What the agent's row would say."""
    return TeardownFacts(
        backend_type="event",
        host_id=f"scaler.{scaler.name}",
        provisioning_targets=[target.to_row() for target in scaler.provisioning_targets],
    )


def fresh_agent_id() -> str:
    return f"scaler-{uuid.uuid4().hex}"


def silent(message: str) -> None:
    """The progress of a test that does not look at it."""


class Heard:
    """What a spawn says of its progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str) -> None:
        self.lines.append(message)

    def __contains__(self, words: str) -> bool:
        return any(words in line for line in self.lines)


def backend_of(own: Client, customer: Customer, **settings: Any) -> tuple[EventBackend, FixedConfig]:
    """A backend whose one target are this customer's workflows, and the configuration that it goes by."""
    config = FixedConfig.of(event_scaler(customer.target(**settings)))
    return EventBackend("customers", own, config, Metrics.of(own)), config


async def was_asked(customer: Customer, agent_id: str) -> bool:
    """Whether a scale-up was started for this agent."""
    try:
        await customer.scale_up(agent_id).describe()
    except RPCError:
        return False
    return True
