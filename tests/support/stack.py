"""The whole of Hatchway for a test: a worker and a gateway in this process, on a namespace and a database of their own.

Tests that kill a worker start one as a process instead; see `processes.py`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

import worker
from hatchway.client import HatchwayClient, Started
from hatchway.config.current import apply
from hatchway.config.schema import Config
from hatchway.gateway.server import serve
from hatchway.gateway.settings import GatewaySettings
from hatchway.model import ComputeRef, ProvisionRequest, ProvisionState, ProvisionStatus
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from tests.support.namespaces import Namespaces, unless_slow, until


def laptop(**scaler: Any) -> dict[str, Any]:
    """A configuration of one bare-metal scaler whose agents run `true`; `scaler` overrides its keys."""
    return {
        "version": 1,
        "scalers": [
            {"name": "laptop", "type": "bare-metal", "maxAgents": 4, "labelSets": [label_set("linux")], **scaler}
        ],
    }


def label_set(label: str, *command: str, **keys: Any) -> dict[str, Any]:
    """A label set whose reference agent runs `command`; without one it serves until it is drained."""
    env = {"HATCHWAY_AGENT_COMMAND": json.dumps(list(command))} if command else {}
    return {"labels": [label], "user": "nobody", "env": env, **keys}


@dataclass
class Stack:
    temporal: Client
    database_url: str
    db: Database
    gateway_url: str
    state_dir: Path
    hatchway: HatchwayClient
    slots: Slots
    outcomes: Outcomes
    _stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = field(default_factory=list)

    async def provision(self, workflow_id: str | None = None, **request: Any) -> Started:
        request.setdefault("labels", ["linux"])
        return await self.hatchway.provision(ProvisionRequest.model_validate(request), workflow_id=workflow_id)

    async def status(self, started: Started) -> ProvisionStatus:
        return await self.hatchway.status(started.workflow_id)

    async def reaches(self, started: Started, *states: ProvisionState) -> ProvisionStatus:
        """Wait until the provision stands in one of these states."""

        async def there() -> ProvisionStatus | None:
            status = await unless_slow(self.status(started))
            return status if status is not None and status.state in states else None

        found: ProvisionStatus = await until(there, what=f"{started.workflow_id} at {states}")
        return found

    async def compute(self, started: Started) -> ComputeRef:
        """What the spawn has answered: an agent may have registered, and be active, before its spawn's answer comes."""

        async def answered() -> ComputeRef | None:
            status = await unless_slow(self.status(started))
            return status.compute if status else None

        found: ComputeRef = await until(answered, what="the spawn's answer")
        return found

    async def apply(self, config: dict[str, Any]) -> None:
        await apply(
            ConfigVersions(self.db), Config.model_validate(config), source="test", by="test", note=None,
            expected_version=None,
        )  # fmt: skip

    async def nothing_left(self) -> None:
        """Invariant: no row, no reservation, every counter at zero."""

        async def empty() -> bool:
            return not await self.slots.list()

        await until(empty)
        used = await self.db.fetch_all("select scope, agents from scaler_capacity where agents <> 0")
        assert used == []


async def _start_worker(stack: AsyncExitStack, settings: worker.WorkerSettings, temporal: Client) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(settings, stop, temporal))

    async def end() -> None:
        stop.set()
        await task

    stack.push_async_callback(end)


async def _start_gateway(stack: AsyncExitStack, database_url: str, temporal: Client, **settings: Any) -> str:
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(
            GatewaySettings(bind="127.0.0.1:0", metrics_bind=None, **settings),
            database_url,
            temporal,
            stop=stop,
            started=url.set_result,
        )
    )

    async def end() -> None:
        stop.set()
        await task

    stack.push_async_callback(end)
    await asyncio.wait([task, url], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    return str(await url)


@asynccontextmanager
async def running_stack(
    namespaces: Namespaces,
    database_url: str,
    config: dict[str, Any] | None = None,
    *,
    with_worker: bool = True,
    gateway: dict[str, Any] | None = None,
    host_id: str | None = None,
) -> AsyncIterator[Stack]:
    """A worker and a gateway on a namespace of their own. Nothing of either is left when it ends."""
    async with AsyncExitStack() as exits:
        temporal = await namespaces.take()
        db = await exits.enter_async_context(Database.open(database_url))
        state_dir = Path(tempfile.mkdtemp(prefix="hatchway-host-"))
        state_dir.chmod(0o755)
        exits.callback(shutil.rmtree, state_dir, ignore_errors=True)
        url = await _start_gateway(exits, database_url, temporal, **(gateway or {}))
        stack = Stack(
            temporal=temporal, database_url=database_url, db=db, gateway_url=url, state_dir=state_dir,
            hatchway=HatchwayClient(temporal), slots=Slots(db), outcomes=Outcomes(db),
        )  # fmt: skip
        await stack.apply(config or laptop())
        if with_worker:
            settings = worker.WorkerSettings(
                database_url=database_url, state_dir=state_dir, gateway_url=url, host_id=host_id or uuid.uuid4().hex
            )
            await _start_worker(exits, settings, temporal)
        yield stack
