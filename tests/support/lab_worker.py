"""A worker process for tests that kill one: the lab's activities, with compute that outlives the process.

    python -m tests.support.lab_worker ADDRESS NAMESPACE DSN DIRECTORY HOST [STEP]

With STEP (`before_create`, `after_create`, `before_destroy`, `after_destroy`) the first call that comes there writes
`DIRECTORY/reached-STEP` and stays there for ever: the test kills the process knowing where it was.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from temporalio.client import Client

from hatchway.client import plugin
from hatchway.store.pool import Database
from tests.support.lab import Lab, control_worker
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

    def _append(self, *words: str) -> None:
        with self._log.open("a") as file:
            file.write(" ".join(words) + "\n")

    @staticmethod
    def effects(directory: Path) -> list[list[str]]:
        """What was done, in order, by any process."""
        log = directory / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


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

            setattr(lab.backend, step, stay)
        async with control_worker(lab):
            lab.start_host(lab.backend)
            (directory / f"ready-{host}").touch()
            await stop.wait()
            await lab.stop_host(host)


if __name__ == "__main__":
    _, address, namespace, dsn, directory, host, *step = sys.argv
    asyncio.run(serve(address, namespace, dsn, Path(directory), host, step[0] if step else None))
