"""A fleet of real processes on servers of its own, every link of which can be cut.

    agents ──► front-1, front-2 ──► gateways ──► ways ──► Postgres, Temporal
                                    workers  ──► ways ──► Postgres, Temporal, the cloud

Servers keep their data on disk and their ports, so that each can be killed and started again. Scalers: `metal` runs
real processes of this host, `cloud` machines of the fake cloud; so does `apart`, whose agents reach the gateways over a
link of their own.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from psycopg.conninfo import make_conninfo
from temporalio.client import Client
from temporalio.service import RPCError

from hatchway.client import HatchwayClient, Started
from hatchway.config.current import apply
from hatchway.config.schema import Config
from hatchway.dev.child import Child
from hatchway.dev.postgres import EmbeddedPostgres
from hatchway.dev.temporal import EmbeddedTemporal
from hatchway.errors import HatchwayError
from hatchway.model import ProvisionRequest
from hatchway.namespace import namespace_uuid
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.installation import tie_namespace
from hatchway.store.migrate import migrate
from hatchway.store.pool import Database
from hatchway.task_queues import spawn_queue
from tests.support.admissions import log_admissions
from tests.support.chaos.bugs import BUGS
from tests.support.chaos.journal import Journal
from tests.support.chaos.points import Barriers
from tests.support.chaos.rows import log_rows
from tests.support.chaos.scalers import APART, CLOUD, DOCKER, FOREIGN, METAL, SECRET, Docker, apart, config
from tests.support.namespaces import new_namespace, until
from tests.support.processes import CLOSED
from tests.support.proxy import FaultProxy

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
HEARTBEAT_S = 1.0
QUIET_PORTS = (20_000, 30_000)
"""Below what Linux gives to outgoing connections."""
PATIENCE_S = 45.0
"""How long one call of the test goes on asking while a server is away."""


@dataclass
class Ways:
    """The links of one process."""

    postgres: FaultProxy
    temporal: FaultProxy
    cloud: FaultProxy | None = None

    @property
    def all(self) -> list[FaultProxy]:
        return [way for way in (self.postgres, self.temporal, self.cloud) if way]


@dataclass
class Fleet:
    directory: Path
    postgres: EmbeddedPostgres
    temporal: EmbeddedTemporal
    dsn: str
    db: Database
    client: Client
    journal: Journal
    barriers: Barriers
    cloud_port: int
    metal_host: str
    ways: dict[str, Ways] = field(default_factory=dict)
    """Name of a worker or gateway -> its links."""
    fronts: dict[str, FaultProxy] = field(default_factory=dict)
    """Name of a gateway -> the way of agents to it."""
    links: list[FaultProxy] = field(default_factory=list)
    """The agents of `apart` come in over these."""
    docker: Docker | None = None
    """The real engine, in a fleet that has one; its faults are then those of the link to it."""
    children: dict[str, Child] = field(default_factory=dict)
    """Workers, gateways and the cloud, by name."""

    @property
    def hatchway(self) -> HatchwayClient:
        return HatchwayClient(self.client)

    @property
    def workers(self) -> list[str]:
        return [name for name in self.children if name.startswith("worker")]

    @property
    def gateways(self) -> list[str]:
        return [name for name in self.children if name.startswith("gateway")]

    @property
    def state_dir(self) -> Path:
        return self.directory / "agents"

    @property
    def cloud_dir(self) -> Path:
        return self.directory / "cloud"

    def logs(self) -> dict[str, Path]:
        """Name of each process -> its log."""
        servers = {"Postgres": self.directory / "postgres" / "server.log", "Temporal": self.temporal.log_path}
        return {**{name: child.log for name, child in self.children.items()}, **servers}

    async def provision(self, job_id: str, scaler: str, **request: Any) -> Started:
        """Start the provision of a job, however often the server is away: one job is one provision."""
        auth = {"registry": "registry.invalid", "username": "bot", "tokenSecret": "registry:token"}
        asked = {
            "labels": [scaler], "job_id": job_id, "wait_timeout": 120,
            "container": {"image": "registry.invalid/team/app:1", "auth": auth}, **request,
        }  # fmt: skip
        return await patiently(lambda: self.hatchway.provision(ProvisionRequest.model_validate(asked)))

    async def ask_cloud(self, verb: str, **ask: Any) -> None:
        """A call to the cloud's own door, past every proxy."""
        url = f"http://127.0.0.1:{self.cloud_port}/{verb}"
        async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
            (await http.post(url, json=ask)).raise_for_status()

    async def plant_foreign(self) -> str:
        """A machine of another installation in the same cloud: nobody of ours may touch it."""
        agent_id = f"scaler-{uuid.uuid4().hex}"
        await self.ask_cloud(
            "create", agent_id=agent_id, installation=FOREIGN, scaler="foreign", env={"KICI_AGENT_ID": agent_id},
            command=["/bin/sleep", "86400"], **{"as": "foreign"},
        )  # fmt: skip
        return agent_id

    async def ready(self, *names: str) -> None:
        """Wait until these processes serve: a worker polls its hosts' queues, a gateway and the cloud listen."""
        served = [METAL, CLOUD, APART, *([DOCKER] if self.docker else [])]
        for name in names or tuple(self.children):
            child = self.children[name]

            def serves(child: Child = child, name: str = name) -> bool:
                child.check()
                said = child.said()
                if name.startswith("worker"):
                    return all(spawn_queue(scaler) in said for scaler in served) and "hatchway.host." in said
                return listens(self.cloud_port) if name == "cloud" else "gateway_started" in said

            await until(serves, what=f"{name} up again")

    def start(self, name: str) -> None:
        self.children[name].start()


async def patiently(call: Callable[[], Awaitable[T]], once: float = 10) -> T:
    """The answer of a call to a server that is away now and then. `once`: seconds that one try may take."""
    async with asyncio.timeout(max(PATIENCE_S, 2 * once)):
        while True:
            try:
                return await asyncio.wait_for(call(), once)
            except (RPCError, HatchwayError, TimeoutError, RuntimeError):
                await asyncio.sleep(0.2)


@asynccontextmanager
async def running_fleet(
    *, workers: int = 2, gateways: int = 2, bug: str | None = None, docker: Docker | None = None
) -> AsyncIterator[Fleet]:
    """Everything, up and ready. All of it has ended when the context has."""
    async with AsyncExitStack() as exits:
        directory = Path(tempfile.mkdtemp(prefix="hatchway-chaos-"))
        directory.chmod(0o711)
        exits.callback(shutil.rmtree, directory, ignore_errors=True)
        for name in ("logs", "cloud"):
            (directory / name).mkdir(mode=0o700)
        journal, barriers = Journal(directory / "journal"), Barriers(directory / "barriers")
        journal.make()
        barriers.make()
        temporal = EmbeddedTemporal(directory / "temporal", port=quiet_port(), ui=False)
        await exits.enter_async_context(temporal)
        postgres = EmbeddedPostgres(directory / "postgres")
        postgres._port = quiet_port()
        exits.callback(postgres.stop)
        await asyncio.to_thread(postgres.start)
        dsn = postgres.createdb("hatchway")
        await asyncio.to_thread(migrate, dsn)
        client = await new_namespace(temporal.address, "chaos")
        db = await exits.enter_async_context(Database.open(dsn, max_size=4))
        await tie_namespace(db, await namespace_uuid(client))
        await log_admissions(db)
        await log_rows(db)
        fleet = Fleet(
            directory=directory, postgres=postgres, temporal=temporal, dsn=dsn, db=db, client=client, journal=journal,
            barriers=barriers, cloud_port=quiet_port(), metal_host=f"metal-{uuid.uuid4().hex[:8]}", docker=docker,
        )  # fmt: skip
        await _Starting(fleet, exits, bug).start(workers, gateways)
        yield fleet


class _Starting:
    def __init__(self, fleet: Fleet, exits: AsyncExitStack, bug: str | None) -> None:
        self._fleet, self._exits, self._bug = fleet, exits, bug

    async def start(self, workers: int, gateways: int) -> None:
        fleet = self._fleet
        self._child("cloud", {}, "-m", "tests.support.chaos.cloud", str(fleet.cloud_dir), str(fleet.cloud_port),
                    str(fleet.journal.path))  # fmt: skip
        for number in range(1, gateways + 1):
            self._gateway(f"gateway-{number}")
        await self._configure()
        url = ",".join(f"http://{front.address}" for front in fleet.fronts.values())
        for number in range(1, workers + 1):
            self._worker(f"worker-{number}", url)
        for child in fleet.children.values():
            child.start()
            self._exits.push_async_callback(child.stop)
        await fleet.ready()
        if self._bug:
            await BUGS[self._bug].in_database(fleet.db)

    async def _configure(self) -> None:
        fleet = self._fleet
        fleet.links = [self._proxy(("127.0.0.1", front.port)) for front in fleet.fronts.values()]
        wanted = config(fleet.journal.path)
        link = ",".join(f"http://{proxy.address}" for proxy in fleet.links)
        wanted["scalers"].append(apart(link, wanted["scalers"][1]))
        if fleet.docker:
            front = self._exits.enter_context(FaultProxy(self._some_front(), host=fleet.docker.address))
            wanted["scalers"].append(fleet.docker.scaler(f"http://{front.address}"))
        await apply(
            ConfigVersions(fleet.db), Config.model_validate(wanted), source="test", by="test", note=None,
            expected_version=None,
        )  # fmt: skip

    def _some_front(self) -> tuple[str, int]:
        return "127.0.0.1", next(iter(self._fleet.fronts.values())).port

    def _gateway(self, name: str) -> None:
        fleet = self._fleet
        port = quiet_port()
        fleet.fronts[name] = self._proxy(("127.0.0.1", port))
        every = str(HEARTBEAT_S)
        env = {
            "HATCHWAY_GATEWAY_HEARTBEAT_INTERVAL": every, "HATCHWAY_GATEWAY_INSTANCE_HEARTBEAT": every,
            "HATCHWAY_GATEWAY_HEARTBEAT_TIMEOUT": str(6 * HEARTBEAT_S),
            "HATCHWAY_GATEWAY_ANSWER_TIMEOUT": "3",
        }  # fmt: skip
        self._child(name, {**self._environment(name), **env}, "-m", "hatchway.cli", "gateway", "--bind",
                    f"127.0.0.1:{port}", "--instance-id", name, "--metrics-bind", "none")  # fmt: skip

    def _worker(self, name: str, url: str) -> None:
        fleet = self._fleet
        way = self._proxy(("127.0.0.1", fleet.cloud_port))
        env = {
            **self._environment(name),
            "CHAOS_NAME": name,
            "CHAOS_BARRIERS": str(fleet.barriers.directory),
            "CHAOS_CLOUD": f"http://{way.address}",
            "CHAOS_JOURNAL": str(fleet.journal.path),
            "CHAOS_BUG": self._bug or "",
            "HATCHWAY_SECRET_TOKEN": SECRET,
        }
        fleet.ways[name].cloud = way
        self._child(name, env, "-m", "tests.support.chaos.entry", "--state-dir", str(fleet.state_dir), "--gateway-url",
                    url, "--host-id", fleet.metal_host)  # fmt: skip

    def _environment(self, name: str) -> dict[str, str]:
        """The way of a worker or a gateway to the servers."""
        fleet = self._fleet
        host, port = fleet.temporal.address.split(":")
        ways = Ways(self._proxy(("127.0.0.1", fleet.postgres.port)), self._proxy((host, int(port))))
        fleet.ways[name] = ways
        return {
            "TEMPORAL_ADDRESS": ways.temporal.address,
            "TEMPORAL_NAMESPACE": "chaos",
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "DATABASE_URL": make_conninfo(fleet.dsn, port=ways.postgres.port),
        }

    def _proxy(self, target: tuple[str, int]) -> FaultProxy:
        return self._exits.enter_context(FaultProxy(target))

    def _child(self, name: str, env: Mapping[str, str], *arguments: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(CLOSED)}
        logs = self._fleet.directory / "logs"
        self._fleet.children[name] = Child(
            name, [sys.executable, *arguments], {**inherited, **env, "PYTHONPATH": str(ROOT)},
            log=logs / f"{name}.log", lock=logs / f"{name}.lock",
        )  # fmt: skip


def new_job(name: str, seconds: float) -> str:
    """A job's id; it says how long the job takes."""
    return f"{name}.{uuid.uuid4().hex[:6]}_{seconds:g}"


def quiet_port() -> int:
    """A free port that no outgoing connection is given: whoever is killed must find its own free again."""
    while True:
        port = random.randrange(*QUIET_PORTS)  # noqa: S311 - no secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
