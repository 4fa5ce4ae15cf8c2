"""A worker process of the capacity tests, with compute that outlives it.

    python -m tests.integration.capacity.host ADDRESS NAMESPACE DSN DIRECTORY HOST SCALER...

Runs workflows, database steps and the spawns of every SCALER, until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from hatchway.client import plugin
from hatchway.store.pool import Database
from hatchway.task_queues import spawn_queue
from tests.support.lab import Lab, control_worker
from tests.support.scripted import Cloud, ScriptedBackend


@dataclass(frozen=True, slots=True)
class Effect:
    """What was done to an agent's compute, and when by the machine's clock."""

    at: float
    what: str
    """`created`, `found` or `removed`."""
    agent_id: str
    host_id: str


class LoggedDisk(Cloud):
    """Compute as files, `live/<agent id>`, and an append-only `log` of what was done, with times.

    Both survive a kill at any instruction: an agent's file is there with its content or not at all.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory, self._live = directory, directory / "live"
        self._live.mkdir(exist_ok=True)

    def create(self, agent_id: str, host_id: str) -> None:
        draft = self._directory / f"draft-{os.getpid()}"
        draft.write_text(host_id)
        try:
            os.link(draft, self._live / agent_id)
        except FileExistsError:
            self._append("found", agent_id, host_id)
        else:
            self._append("created", agent_id, host_id)
        finally:
            draft.unlink()

    def remove(self, agent_id: str, host_id: str) -> None:
        path = self._live / agent_id
        if path.exists() and path.read_text() == host_id:
            path.unlink()
            self._append("removed", agent_id, host_id)

    def _append(self, what: str, agent_id: str, host_id: str) -> None:
        with (self._directory / "log").open("a") as file:
            file.write(f"{time.time()} {what} {agent_id} {host_id}\n")


class EffectLog:
    """Reads the log of a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"
        self._path.touch()

    def new(self, offset: int) -> tuple[list[Effect], int]:
        """What was appended after `offset`, and the offset for the next look."""
        with self._path.open() as file:
            file.seek(offset)
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        return list(self._parsed(complete)), offset + len(complete)

    def everything(self) -> list[Effect]:
        return self.new(0)[0]

    @staticmethod
    def _parsed(text: str) -> Iterator[Effect]:
        for line in text.splitlines():
            at, what, agent_id, host_id = line.split()
            yield Effect(float(at), what, agent_id, host_id)


async def serve(address: str, namespace: str, dsn: str, directory: Path, host: str, scalers: list[str]) -> None:
    temporal = await Client.connect(address, namespace=namespace, plugins=[plugin()])
    async with AsyncExitStack() as exits:
        db = await exits.enter_async_context(Database.open(dsn))
        lab = await Lab.on(temporal, db, ScriptedBackend(LoggedDisk(directory), host=host))
        await exits.enter_async_context(control_worker(lab))
        lab.start_host(lab.backend, spawns=False)
        spawn = lab.compute(lab.backend).spawn
        for scaler in scalers:
            worker = Worker(temporal, task_queue=spawn_queue(scaler), activities=[spawn])
            await exits.enter_async_context(worker)
        (directory / f"ready-{host}").touch()
        await asyncio.Event().wait()


if __name__ == "__main__":
    _, address, namespace, dsn, directory, host, *scalers = sys.argv
    asyncio.run(serve(address, namespace, dsn, Path(directory), host, scalers))
