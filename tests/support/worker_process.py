"""`python worker.py` as a process of its own, with a log that a test can read."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hatchway.dev.ports import free_port
from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A worker of `stack`'s namespace, database and state directory. All have one host id, unless told otherwise."""

    def __init__(
        self, stack: Stack, *arguments: str, environ: Mapping[str, str] | None = None, host_id: str = "this-host"
    ) -> None:
        self._stack = stack
        self.health_port = free_port()
        self._arguments = (
            "--state-dir", str(stack.state_dir), "--host-id", host_id,
            "--health", f"127.0.0.1:{self.health_port}", *arguments,
        )  # fmt: skip
        self._environ = environ or {}
        self._log = stack.state_dir / f"worker-{self.health_port}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.health_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text()

    def entries(self) -> list[dict[str, Any]]:
        """The structured part of its log."""
        return [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]

    async def start(self) -> None:
        client = self._stack.temporal
        with self._log.open("a") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "worker.py", *self._arguments,
                cwd=ROOT,
                env={
                    **os.environ,
                    "DATABASE_URL": self._stack.database_url,
                    "TEMPORAL_ADDRESS": client.service_client.config.target_host,
                    "TEMPORAL_NAMESPACE": client.namespace,
                    "HATCHWAY_GATEWAY_URL": self._stack.gateway_url,
                    **self._environ,
                },
                stdout=log, stderr=log,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 120)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended()


@asynccontextmanager
async def running_worker(
    stack: Stack, *arguments: str, environ: Mapping[str, str] | None = None, host_id: str = "this-host"
) -> AsyncIterator[WorkerProcess]:
    """A worker that has ended when the context has."""
    process = WorkerProcess(stack, *arguments, environ=environ, host_id=host_id)
    await process.start()
    try:
        yield process
    finally:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGTERM)  # a test that is over waits for nothing
        try:
            await process.ended()
        except BaseException:  # it does not end, or the test is at its limit: no worker outlives its test
            process.signal(signal.SIGKILL)
            raise
