"""The reference agent as a process of a test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hatchway import agent

SOURCE = Path(agent.__file__)
CLAIM = "marker-claim-1f2e3d4c5b6a79880716253443526170"

RUN = f"import runpy\nrunpy.run_path({str(SOURCE)!r}, run_name='__main__')"


@dataclass
class Running:
    """An agent process, and the file with what it and its command print: a pipe would wait for a job left behind."""

    process: subprocess.Popen[bytes]
    output: Path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def finish(running: Running) -> tuple[int, str]:
    """Wait for the end: the exit code, and everything printed."""
    code = running.process.wait(40)
    return code, running.output.read_text()


Launch = Callable[..., Running]


def shell(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


def patched(old: str, new: str) -> str:
    """A prelude that runs the file with one of its numbers changed, in place of the file itself."""
    assert SOURCE.read_text().count(old) == 1
    return (
        f"source = open({str(SOURCE)!r}).read().replace({old!r}, {new!r})\n"
        "exec(compile(source, 'agent', 'exec'), {'__name__': '__main__'})"
    )
