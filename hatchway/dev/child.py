"""One of our own processes as a child: with its own log, ended with its owner, and never two of it in one directory."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hatchway.errors import HatchwayError

STOP_GRACE_S = 25.0
"""Longer than the 20 s that a worker gives its running activities."""
LOG_KEEP_BYTES = 10_000_000


class ChildError(HatchwayError):
    """A child process has ended, or cannot be started. Says its last words and where its log is."""


class Child:
    """`command`, with what it prints in `log`. `lock` is held by the process for as long as it lives.

    A child that outlived its owner (kill -9) still holds the lock: the next start ends exactly that one.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], *, log: Path, lock: Path) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._env = dict(env)
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it. Raises ChildError when another one's lock cannot be had."""
        if self.log.exists() and self.log.stat().st_size > LOG_KEEP_BYTES:
            self.log.unlink()
        with self._own_lock() as lock, open(self.log, "ab", opener=_private) as log:
            self._began = log.tell()
            # Its own session: a terminal's Ctrl-C reaches the owner alone, who ends its children in order.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
            )
            lock.truncate(0)
            lock.write(str(self._process.pid))
            lock.flush()

    def check(self) -> None:
        """Raise ChildError when it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise ChildError(
                f"the {self.name} has ended with exit code {self._process.returncode}: {self.last_words()} "
                f"(all of it: {self.log})"
            )

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace. Returns when it has ended. Safe to repeat."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    def said(self) -> str:
        """All that it has printed since it was started last."""
        with open(self.log, "rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        lines = self.said().strip().splitlines()
        return " | ".join(line[:300] for line in lines[-3:]) or "it printed nothing"

    def _own_lock(self) -> IO[str]:
        lock = open(self._lock, "a+", opener=_private)  # noqa: SIM115 - the caller closes it, the child keeps it
        deadline = time.monotonic() + STOP_GRACE_S
        signalled = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                if time.monotonic() > deadline or not holder.isdigit():
                    lock.close()
                    raise ChildError(
                        f"a {self.name} of an earlier run still holds {self._lock} and does not end: kill {holder}"
                    ) from None
                if not signalled:
                    # Whoever holds the lock is alive and wrote this number: it cannot have been given to another.
                    os.kill(int(holder), signal.SIGTERM)
                    signalled = True
                time.sleep(0.05)
            else:
                return lock


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
