"""All of Hatchway on this machine, in one directory: Temporal with its UI, Postgres, a worker and a gateway.

The servers are real, and the worker and the gateway are processes of their own, so what is seen here is what happens
in a deployment: they can be killed and come back, and their logs are files.

    DIRECTORY/           0700; as root 0711: Postgres and the agents then run as other users, who must pass. Below a
                         home that is closed to them, postgres/ and agents/ are where `elsewhere` points
        temporal/ postgres/ logs/ secrets/   0700
        agents/          what the worker must find again
        env              0600: the addresses and the database's password, to be sourced by a shell
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client

from hatchway.client import HatchwayClient, connect
from hatchway.config.current import apply
from hatchway.config.loading import load
from hatchway.config.schema import Config
from hatchway.config.versions import to_stored
from hatchway.dev.child import Child, ChildError
from hatchway.dev.passable import passable_directory
from hatchway.dev.ports import free_port
from hatchway.dev.postgres import EmbeddedPostgres
from hatchway.dev.ready import missing
from hatchway.dev.temporal import EmbeddedTemporal
from hatchway.errors import HatchwayError
from hatchway.namespace import namespace_uuid
from hatchway.schedules import make_schedules
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.installation import tie_namespace
from hatchway.store.migrate import migrate
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from hatchway.task_queues import CONTROL, spawn_queue
from hatchway.waking import wake_all

READY_S = 30.0
"""Both children import the Temporal SDK, about 2 s on two busy cores."""
NAMESPACE = "default"
PORT_TAKEN = "Address already in use"


class StackError(HatchwayError):
    """The stack does not come up. Says which part, and what to do."""


@dataclass(frozen=True)
class Ports:
    """Ports that somebody wants; None takes a free one."""

    temporal: int | None = None
    ui: int | None = None
    gateway: int | None = None


class Stack:
    """Start with `start`, end with `stop`; data stays in the directory. Raises HatchwayError, in words."""

    def __init__(
        self,
        directory: Path,
        config: Path,
        *,
        ports: Ports = Ports(),
        gateway_host: str = "127.0.0.1",
        database_url: str | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.directory = directory.absolute()
        self.config = config
        self._passable = passable_directory(self.directory)
        self._gateway_host = gateway_host
        self._port_is_given = ports.gateway is not None
        self._gateway_port = ports.gateway or free_port(gateway_host)
        self._say = say
        self.temporal = EmbeddedTemporal(self.directory / "temporal", port=ports.temporal, ui_port=ports.ui)
        # A server of one's own replaces the embedded one, where that cannot run.
        self._postgres = None if database_url else own_postgres(directory)
        self._database_url = database_url or ""
        self._children: list[Child] = []

    @property
    def database_url(self) -> str:
        return self._database_url

    @property
    def gateway_url(self) -> str:
        return f"http://{self._gateway_host}:{self._gateway_port}"

    @property
    def state_dir(self) -> Path:
        return self._passable / "agents"

    @property
    def secrets_dir(self) -> Path:
        return self.directory / "secrets"

    @property
    def logs_dir(self) -> Path:
        return self.directory / "logs"

    def environment(self) -> dict[str, str]:
        """What a `hatchway` command needs to speak with this stack."""
        return {
            "TEMPORAL_ADDRESS": self.temporal.address,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "DATABASE_URL": self.database_url,
            "HATCHWAY_GATEWAY_URL": self.gateway_url,
            "HATCHWAY_STATE_DIR": str(self.state_dir),
            "HATCHWAY_UI_URL": self.temporal.ui_url or "",
        }

    async def start(self) -> None:
        """Bring everything up, and return when a provision could run. On failure nothing is left running."""
        config = load(self.config)  # a mistake in it is said before anything runs
        self.prepare()
        try:
            await self._start_servers()
            await self._prepare_servers(config)
            await self._start_children(config)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End everything, the servers last. Safe to repeat."""
        await asyncio.gather(*(child.stop() for child in self._children))
        await self.temporal.stop()
        if self._postgres is not None:
            await asyncio.to_thread(self._postgres.stop)

    async def connect(self) -> Client:
        """A client of this stack's Temporal, whatever the caller's own environment names."""
        return await connect(target_host=self.temporal.address, namespace=NAMESPACE, tls=False, api_key=None)

    def check(self) -> None:
        """Raise ChildError when the worker or the gateway has ended."""
        for child in self._children:
            child.check()

    def write_environment(self) -> Path:
        """A file for shells to source: `. DIRECTORY/env`."""
        path = self.directory / "env"
        with open(path, "w", opener=_private) as file:
            file.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment().items())
        return path

    # ── up ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Make the directories; `start` does it too."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o711 if os.geteuid() == 0 else 0o700)
        if self._passable != self.directory:
            self._prepare_passable()
        for name in ("logs", "secrets"):
            (self.directory / name).mkdir(exist_ok=True)
            (self.directory / name).chmod(0o700)

    def _prepare_passable(self) -> None:
        link = self.directory / "elsewhere"
        if not link.is_symlink():
            # Whoever has removed the directory has removed Temporal's half of the data: this half is worth nothing.
            shutil.rmtree(self._passable, ignore_errors=True)
            link.symlink_to(self._passable)
            self._say(f"others may not enter {self.directory}: Postgres and the agents are kept in {self._passable}")
        self._passable.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._passable.chmod(0o711)

    async def _start_servers(self) -> None:
        starting = [asyncio.create_task(self._start_temporal())]
        if self._postgres is not None:
            starting.append(asyncio.create_task(self._start_postgres(self._postgres)))
        try:
            await asyncio.wait(starting)
        finally:
            # Also when this is cancelled: one that is half way up has to be all there before stop() can find it.
            await asyncio.wait(starting)
        for task in starting:
            task.result()

    async def _start_temporal(self) -> None:
        await self.temporal.start()
        self._say(f"Temporal is up at {self.temporal.address}, its UI at {self.temporal.ui_url}")

    async def _start_postgres(self, postgres: EmbeddedPostgres) -> None:
        await asyncio.to_thread(postgres.start)
        self._database_url = await asyncio.to_thread(postgres.createdb, "hatchway")
        self._say(f"Postgres is up on 127.0.0.1:{postgres.port}")

    async def _prepare_servers(self, config: Config) -> None:
        """What `hatchway db migrate`, `hatchway setup` and an apply of the configuration do, each safe to repeat."""
        await asyncio.to_thread(migrate, self.database_url)
        client = await self.connect()
        async with Database.open(self.database_url, max_size=2) as db:
            uuid = await namespace_uuid(client)
            if (await tie_namespace(db, uuid)).namespace_uuid != uuid:
                raise StackError(
                    f"the Postgres and the Temporal data in {self.directory} do not belong together: remove it"
                    if self._postgres
                    else "DATABASE_URL names the database of another Temporal namespace: unset it, or name an empty one"
                )
            await self._apply(client, db, config)
        await make_schedules(client)

    async def _apply(self, client: Client, db: Database, config: Config) -> None:
        """Unlike a worker's --config, an edited file counts: whoever restarts a dev stack has changed something."""
        current = await ConfigVersions(db).current()
        if current is not None and current.sha256 == to_stored(config).sha256:
            return
        applied = await apply(
            ConfigVersions(db), config, source=str(self.config), by="hatchway dev", note=None, expected_version=None
        )
        await wake_all(client, Slots(db), Line(db), applied.wake)

    async def _start_children(self, config: Config) -> None:
        """Start both at once. A free port can be taken by another process before the gateway has it: then once more."""
        while True:
            self._launch_children()
            try:
                return await self._until_ready(config)
            except ChildError:
                taken = any(PORT_TAKEN in child.said() for child in self._children)
                if self._port_is_given or not taken:
                    raise
            await asyncio.gather(*(child.stop() for child in self._children))
            self._gateway_port = free_port(self._gateway_host)

    def _launch_children(self) -> None:
        private = self._gateway_host == "127.0.0.1"
        bind = f"{self._gateway_host}:{self._gateway_port}"
        gateway = ["gateway", "--bind", bind, "--metrics-bind", "none", *([] if private else ["--behind-tls-proxy"])]
        worker = ["worker", "--state-dir", str(self.state_dir), "--gateway-url", self.gateway_url]
        self._children = []
        for name, arguments in (("worker", worker), ("gateway", gateway)):
            child = Child(
                name,
                [sys.executable, "-m", "hatchway.cli", *arguments],
                self._child_environment(),
                log=self.logs_dir / f"{name}.log",
                lock=self.logs_dir / f"{name}.lock",
            )
            self._children.append(child)
            child.start()

    def _child_environment(self) -> dict[str, str]:
        """Ours, less what would lead the children to other servers or settings than this stack's."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TEMPORAL_", "HATCHWAY_GATEWAY_", "HATCHWAY_HOST_ID"))
        }
        # Without it a profile in the user's Temporal configuration would add an API key or TLS.
        return {**inherited, **self.environment(), "TEMPORAL_CONFIG_FILE": os.devnull}

    async def _until_ready(self, config: Config) -> None:
        """Wait until the gateway answers and a worker polls every queue that the configuration needs."""
        client = await self.connect()
        queues = [CONTROL, *(spawn_queue(scaler.name) for scaler in config.scalers)]
        deadline = time.monotonic() + READY_S
        while waits_for := await missing(client, self.gateway_url, queues):
            self.check()
            if time.monotonic() > deadline:
                said = "; ".join(f"{c.name}: {c.last_words()}" for c in self._children)
                raise StackError(f"waited {READY_S:g} s for {' and '.join(waits_for)}. Last log lines: {said}")
            await asyncio.sleep(0.05)
        self._say(f"a worker polls, and the gateway is up at {self.gateway_url}")


def own_postgres(directory: Path) -> EmbeddedPostgres:
    """The Postgres of a stack's directory. Not started by this."""
    return EmbeddedPostgres(passable_directory(directory.absolute()) / "postgres")


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[tuple[HatchwayClient, Database]]:
    """The stack, up, with a client of each of its servers; down again at the end."""
    await stack.start()
    try:
        async with Database.open(stack.database_url, max_size=4) as db:
            yield HatchwayClient(await stack.connect()), db
    finally:
        await stack.stop()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
