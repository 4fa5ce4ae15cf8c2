"""An instance's inside: its user data, run as a boot script would be, and the commands that turn a machine off."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PATH = "/usr/local/bin:/usr/bin:/bin"
MARK = "FAKE_EC2_INSTANCE"
ENVIRONMENT = frozenset({"PATH", "HOME", "PWD", "TMPDIR", MARK, "OLDPWD", "SHLVL", "_", "LANG"})
"""What a boot script has on this cloud, and a shell adds."""

SWITCH = """\
#!/bin/sh
# Turns this machine off, or says when: what it is told is for the cloud to read.
echo "$@" >>"{directory}/switch"
"""


class Inside:
    """The processes of one instance. Its directory stands for its disk, and is no other cloud's, as its id may be."""

    def __init__(self, directory: Path, user_data: str) -> None:
        self._directory = directory
        (directory / "bin").mkdir(parents=True)
        (directory / "tmp").mkdir()
        for name in ("shutdown", "poweroff", "halt"):
            switch = directory / "bin" / name
            switch.write_text(SWITCH.format(directory=directory))
            switch.chmod(0o755)
        python = directory / "bin" / "python3"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        script = directory / "user-data"
        script.write_text(user_data, "utf-8", "surrogateescape")
        script.chmod(0o700)
        self._console = directory / "console"
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        environment = {
            "PATH": f"{self._directory}/bin:{PATH}",
            "HOME": "/root",
            "TMPDIR": str(self._directory / "tmp"),
            MARK: str(self._directory),
        }
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                [str(self._directory / "user-data")], env=environment, cwd=self._directory, stdin=subprocess.DEVNULL,
                stdout=console, stderr=console, start_new_session=True,
            )  # fmt: skip

    @property
    def console(self) -> bytes:
        return self._console.read_bytes()[-64 * 1024 :] if self._console.exists() else b""

    @property
    def switched(self) -> list[list[str]]:
        """What its own `shutdown` and `poweroff` were told, in order."""
        switch = self._directory / "switch"
        return [line.split() for line in switch.read_text().splitlines()] if switch.exists() else []

    def end(self, grace: float) -> None:
        """As an operating system goes down: SIGTERM to everything, and after the grace SIGKILL."""
        if self._process is None:
            return
        until = time.monotonic() + grace
        self._signal(signal.SIGTERM)
        while self._signal(None) and time.monotonic() < until:
            time.sleep(0.02)
        while self._signal(signal.SIGKILL):
            time.sleep(0.02)

    def processes(self) -> Iterator[int]:
        mark = f"{MARK}={self._directory}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)

    def _signal(self, number: signal.Signals | None) -> bool:
        """Whether anything of it still runs."""
        if self._process is not None:
            self._process.poll()  # a child that nobody waits for stays in the list of processes
        found = False
        for pid in self.processes():
            found = True
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return found
