"""Agents that the example's customer boots, told by a `temporal:` target, as the contract wants to see them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from temporalio.client import Client

from hatchway.backends.base import Accepted, Backend, Gone, SpawnSpec
from hatchway.backends.event import EventBackend
from hatchway.metrics import Metrics
from hatchway.model import ScaleDownReason, TeardownFacts
from tests.contract.backend import Behaviour
from tests.support.customer import Customer, FixedConfig, facts_of, spec_of
from tests.support.proxy import FaultProxy

ROOT = Path(__file__).parents[2]


class ByTheRow(EventBackend):
    """Told of teardowns with what the agent's row has had since its slot was reserved: the targets."""

    def __init__(self, own: Client, config: FixedConfig) -> None:
        super().__init__("customers", own, config, Metrics.of(own))
        self._on_the_row = facts_of(config.scaler).provisioning_targets

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        row = facts.model_copy(update={"provisioning_targets": self._on_the_row})
        return await super().destroy(agent_id, row, reason)


@dataclass
class EventHarness:
    own: Client
    customer: Customer
    config: FixedConfig
    proxy: FaultProxy
    """Between Hatchway and the customer's Temporal server."""
    address: str
    """Of Hatchway's own server."""
    made: list[EventBackend] = field(default_factory=list)
    base_environment: frozenset[str] = frozenset()

    @property
    def backend(self) -> Backend:
        return self.made[0] if self.made else self._make()

    def _make(self) -> EventBackend:
        self.made.append(ByTheRow(self.own, self.config))
        return self.made[-1]

    async def another(self, installation_id: str | None = None) -> Backend:
        assert installation_id is None, "customers are told by agent ids alone"
        return self._make()

    def spec(self, agent_id: str, behaviour: Behaviour, env: Mapping[str, str]) -> SpawnSpec:
        assert behaviour is Behaviour.RUNS, "what an agent does is the customer's"
        spec = spec_of(self.config.scaler, agent_id, claim=env["KICI_SCALER_CLAIM_CODE"])
        return replace(spec, env={**spec.env, **env})

    async def live(self, agent_id: str) -> int:
        return int(await asyncio.to_thread(self.customer.machines.runs, agent_id))

    async def remains(self, agent_id: str) -> list[str]:
        """A machine that runs, or that was booted and is not deleted."""
        booted = [f"{agent_id} was not deleted"] if agent_id in self.customer.machines.agents() else []
        return booted + ["it runs"] * await self.live(agent_id)

    async def environment(self, agent_id: str) -> dict[str, str]:
        raise AssertionError("it is the customer's")

    async def exposed(self, agent_id: str) -> str:
        raise AssertionError("it is the customer's")

    async def kill_from_outside(self, agent_id: str) -> None:
        await asyncio.to_thread(self.customer.machines.delete, agent_id)

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.proxy.cut()
        try:
            yield
        finally:
            self.proxy.heal()

    async def crash_during_spawn(self, spec: SpawnSpec, point: str) -> None:
        """A process of its own, which kills itself at this point."""
        document = self.config.config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        orders = {
            "address": self.address, "namespace": self.own.namespace, "document": document, "point": point,
            "agent_id": spec.agent_id, "claim": spec.env["KICI_SCALER_CLAIM_CODE"],
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.contract.event_crash", cwd=ROOT, stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        await process.communicate(json.dumps(orders).encode())
        assert process.returncode == -9, f"it ended by itself: {process.returncode}"


def proxy_to(address: str) -> FaultProxy:
    host, _, port = address.rpartition(":")
    return FaultProxy((host, int(port)))
