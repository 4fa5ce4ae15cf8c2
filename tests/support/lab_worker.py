"""A worker process for tests that kill one: the lab's activities, with compute that outlives the process.

    python -m tests.support.lab_worker ADDRESS NAMESPACE DSN DIRECTORY HOST [STEP]

With STEP (`before_create`, `after_create`, `before_destroy`, `after_destroy`, `before_bind`, `after_bind`, or
`after_release` of a teardown that also releases) the first call that comes there writes `DIRECTORY/reached-STEP` and
stays there for ever: the test kills the process knowing where it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from temporalio import activity
from temporalio.client import Client

from activities.models import BindInput
from activities.warm import WarmActivities
from hatchway.client import plugin
from hatchway.store.pool import Database
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import until
from tests.support.scripted import Cloud, ScriptedBackend


class DiskCloud(Cloud):
    """Compute as files: `live/<agent id>` holds its host; `log` is appended to, a line for each effect."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._live, self._log = directory / "live", directory / "log"
        self._live.mkdir(exist_ok=True)

    def create(self, agent_id: str, host_id: str) -> None:
        try:
            with (self._live / agent_id).open("x") as file:
                file.write(host_id)
        except FileExistsError:
            self._append("found", agent_id, host_id)
        else:
            self._append("created", agent_id, host_id)

    def remove(self, agent_id: str, host_id: str) -> None:
        path = self._live / agent_id
        if path.exists() and path.read_text() == host_id:
            path.unlink()
            self._append("removed", agent_id, host_id)

    def asked_to_destroy(self, agent_id: str, host_id: str) -> None:
        self._append("asked", agent_id, host_id)

    def _append(self, *words: str) -> None:
        with self._log.open("a") as file:
            file.write(" ".join(words) + "\n")

    @staticmethod
    def effects(directory: Path) -> list[list[str]]:
        """What was done, in order, by any process."""
        log = directory / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def _stay_at_bind(step: str, stay: Callable[[str], Awaitable[None]]) -> None:
    """Before the warm agent's workflow is told of its job, or after it has said yes and before anybody knows."""
    send = WarmActivities._send_bind

    async def staying(self: WarmActivities, ask: BindInput) -> bool:
        if step == "before_bind":
            await stay(ask.agent_id)
        bound = await send(self, ask)
        await stay(ask.agent_id)
        return bound

    WarmActivities._send_bind = staying  # type: ignore[method-assign]


def _stay_after_release(lab: Lab, stay: Callable[[str], Awaitable[None]]) -> None:
    """The teardown's own release has committed, and nobody knows. Temporal is to miss this worker soon, but not before
    it has come so far: there would be a second attempt.
    """
    release = lab.slots.release

    async def staying(agent_id: str, *args: Any, **keys: Any) -> Any:
        released = await release(agent_id, *args, **keys)
        if activity.info().activity_type == "teardown":
            await stay(agent_id)
        return released

    lab.slots.release = staying  # type: ignore[method-assign]
    mock.patch("workflows.rounds.HEARTBEAT_TIMEOUT", timedelta(seconds=6)).start()


async def serve(address: str, namespace: str, dsn: str, directory: Path, host: str, step: str | None) -> None:
    temporal = await Client.connect(address, namespace=namespace, plugins=[plugin()])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Database.open(dsn) as db:
        lab = await Lab.on(temporal, db, ScriptedBackend(DiskCloud(directory), host=host))
        if step:
            reached = directory / f"reached-{step}"

            async def stay(_agent_id: str) -> None:
                reached.touch()
                await asyncio.Event().wait()

            if "bind" in step:
                _stay_at_bind(step, stay)
            elif step == "after_release":
                _stay_after_release(lab, stay)
            else:
                setattr(lab.backend, step, stay)
        async with control_worker(lab):
            lab.start_host(lab.backend)
            (directory / f"ready-{host}").touch()
            await stop.wait()
            await lab.stop_host(host)


class Fleet:
    """Worker processes of one namespace and one database, over compute that outlives them."""

    def __init__(self, lab: Lab, dsn: str, directory: Path) -> None:
        self.lab = lab
        self.directory = directory
        self._dsn = dsn
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, host: str, step: str | None = None) -> asyncio.subprocess.Process:
        (self.directory / f"ready-{host}").unlink(missing_ok=True)
        client = self.lab.temporal
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.lab_worker", client.service_client.config.target_host,
            client.namespace, self._dsn, str(self.directory), host, *([step] if step else []),
            cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(process)
        ready = self.directory / f"ready-{host}"
        await until(lambda: ready.exists() or process.returncode is not None, patience=120, what=f"{host} up")
        assert process.returncode is None
        return process

    async def stop(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()

    def effects(self, what: str) -> list[list[str]]:
        return [effect for effect in DiskCloud.effects(self.directory) if effect[0] == what]


if __name__ == "__main__":
    _, address, namespace, dsn, directory, host, *step = sys.argv
    asyncio.run(serve(address, namespace, dsn, Path(directory), host, step[0] if step else None))
