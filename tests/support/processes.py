"""The whole of Hatchway as real processes: servers that keep their data in files, a worker and a gateway with logs.

For tests of what these leave behind, which nothing inside the test's own process can show.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from psycopg.conninfo import make_conninfo
from temporalio.client import Client

from hatchway.client import HatchwayClient, Started
from hatchway.dev.child import Child
from hatchway.dev.ports import free_port
from hatchway.dev.postgres import EmbeddedPostgres
from hatchway.dev.ready import missing
from hatchway.dev.temporal import EmbeddedTemporal
from hatchway.model import ProvisionRequest, ProvisionState
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import tie_namespace
from hatchway.store.migrate import migrate
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from hatchway.task_queues import CONTROL, spawn_queue
from tests.support.namespaces import new_namespace, unless_slow, until
from tests.support.proxy import FaultProxy

CLOSED = ("HATCHWAY_", "KICI_", "TEMPORAL_", "DATABASE_URL")
"""What the test's own environment must not pass on to the processes."""


@dataclass
class Processes:
    """One deployment. `database` is the way of the worker and the gateway to Postgres, which can be cut."""

    directory: Path
    temporal: EmbeddedTemporal
    postgres: EmbeddedPostgres
    database: FaultProxy
    dsn: str
    """Straight to the database, not through the proxy."""
    client: Client
    hatchway: HatchwayClient
    slots: Slots
    worker: Child
    gateway: Child
    gateway_url: str
    metrics: Mapping[str, str]
    """Name of the process -> address of its Prometheus page."""

    @property
    def state_dir(self) -> Path:
        return self.directory / "agents"

    @property
    def logs(self) -> dict[str, Path]:
        """Name of the process -> its log."""
        return {
            "worker": self.worker.log,
            "gateway": self.gateway.log,
            "Temporal server": self.temporal.log_path,
            "Postgres": self.directory / "postgres" / "server.log",
        }

    async def provision(self, workflow_id: str | None = None, **request: Any) -> Started:
        return await self.hatchway.provision(ProvisionRequest.model_validate(request), workflow_id=workflow_id)

    async def reaches(self, started: Started, state: ProvisionState) -> None:
        async def there() -> bool:
            status = await unless_slow(self.hatchway.status(started.workflow_id))
            return status is not None and status.state is state

        await until(there, what=f"{started.workflow_id} at {state.value}")

    async def nothing_left(self) -> None:
        async def empty() -> bool:
            return not await self.slots.list()

        await until(empty, what="no slot held")

    async def metrics_pages(self) -> dict[str, bytes]:
        async with httpx.AsyncClient(trust_env=False) as http:
            pages = {name: await http.get(url) for name, url in self.metrics.items()}
        assert all(page.status_code == 200 for page in pages.values())
        return {name: page.content for name, page in pages.items()}


@asynccontextmanager
async def running_processes(
    directory: Path,
    config: dict[str, Any],
    *,
    namespace: str,
    instance_id: str,
    gateway_port: int,
    worker_env: Mapping[str, str],
    env_of_both: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Processes]:
    """Everything, up and ready for each scaler of `config`; all of it has ended when the context has.

    `directory` must be passable for the users of Postgres and of the agents. The metrics pages are on free ports.
    `env_of_both` is the worker's and the gateway's.
    """
    async with AsyncExitStack() as exits:
        (directory / "logs").mkdir(mode=0o700)
        temporal = await exits.enter_async_context(EmbeddedTemporal(directory / "temporal", ui=False))
        postgres = exits.enter_context(EmbeddedPostgres(directory / "postgres"))
        dsn = postgres.createdb("hatchway")
        await asyncio.to_thread(migrate, dsn)
        client = await new_namespace(temporal.address, namespace)
        db = await exits.enter_async_context(Database.open(dsn, max_size=2))
        await tie_namespace(db, await namespace_uuid(client))  # as `hatchway setup` does
        way = exits.enter_context(FaultProxy(("127.0.0.1", postgres.port)))
        file = directory / "hatchway.yaml"
        file.write_text(json.dumps(config))
        url = f"http://127.0.0.1:{gateway_port}"
        ports = {"worker": free_port(), "gateway": free_port()}
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(CLOSED)},
            "TEMPORAL_ADDRESS": temporal.address,
            "TEMPORAL_NAMESPACE": namespace,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "DATABASE_URL": make_conninfo(dsn, port=way.port),
            **env_of_both,
        }
        worker = _child(
            directory,
            "worker",
            {**env, **worker_env, "HATCHWAY_GATEWAY_URL": url},
            "--config", str(file), "--state-dir", str(directory / "agents"), "--metrics-port", str(ports["worker"]),
        )  # fmt: skip
        gateway = _child(
            directory, "gateway", env,
            "--bind", f"127.0.0.1:{gateway_port}", "--instance-id", instance_id,
            "--metrics-bind", f"127.0.0.1:{ports['gateway']}",
        )  # fmt: skip
        for child in (worker, gateway):
            child.start()
            exits.push_async_callback(child.stop)
        queues = [CONTROL, *(spawn_queue(scaler["name"]) for scaler in config["scalers"])]

        async def ready() -> bool:
            worker.check()
            gateway.check()
            return not await missing(client, url, queues)

        await until(ready, what="worker and gateway ready")
        yield Processes(
            directory=directory, temporal=temporal, postgres=postgres, database=way, dsn=dsn, client=client,
            hatchway=HatchwayClient(client), slots=Slots(db), worker=worker, gateway=gateway, gateway_url=url,
            metrics={name: f"http://127.0.0.1:{port}/metrics" for name, port in ports.items()},
        )  # fmt: skip


def _child(directory: Path, name: str, env: Mapping[str, str], *arguments: str) -> Child:
    command = [sys.executable, "-m", "hatchway.cli", name, *arguments]
    logs = directory / "logs"
    return Child(name, command, env, log=logs / f"{name}.log", lock=logs / f"{name}.lock")
