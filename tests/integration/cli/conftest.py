"""A whole stack on this machine, and the command line as a shell sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hatchway.dev.leaving import let_agents_go
from hatchway.dev.stack import Stack
from hatchway.store.pool import Database
from tests.support.postgres_fixtures import private_directory

LABEL_SETS = {
    "quick": ["/bin/sh", "-c", "echo hello"],
    "failing": ["/bin/sh", "-c", "echo oh no; exit 3"],
    "long": ["/bin/sh", "-c", "echo began; sleep 600"],
    "single": ["/bin/sh", "-c", "sleep 600"],
}
"""Label, and what its agents run. Each is a scaler of its own; `single` has one slot."""

OWN = ("DATABASE_URL", "TEMPORAL_", "HATCHWAY_", "KICI_", "CI")
"""Variables of whoever runs the tests that must not decide what a test sees."""


def clean_environment(given: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without anything that names a server, and with `given`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | dict(given)


@dataclass(frozen=True)
class Hatchway:
    """Runs `hatchway` commands in one environment."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hatchway.cli", *arguments],
            input=stdin,
            env=clean_environment({**self.environment, **environment}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def object(self, *arguments: str, stdin: str = "") -> dict[str, Any]:
        """What a command answers with `--json`; it must succeed."""
        done = self(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def provision(self, label: str, *arguments: str, **request: Any) -> dict[str, Any]:
        return self.object("provision", "-", *arguments, stdin=json.dumps({"labels": [label], **request}))

    def agents(self) -> dict[str, dict[str, Any]]:
        """What `list` has, by agent id."""
        done = self("list", "--json")
        assert done.returncode == 0, done.stderr
        return {row["agent_id"]: row for row in map(json.loads, done.stdout.splitlines())}

    def until_gone(self, agent_id: str) -> None:
        """Wait until the agent holds no slot."""
        until(lambda: agent_id not in self.agents(), f"{agent_id} holds no slot")

    def until_shown(self, name: str, **fields: str) -> dict[str, Any]:
        """What `show` says of an agent or a workflow once these fields of it are so."""

        def so() -> dict[str, Any] | None:
            shown = self.object("show", name)
            return shown if fields.items() <= shown.items() else None

        found: dict[str, Any] = until(so, f"{name} shown with {fields}")
        return found


def until(condition: Callable[[], Any], what: str, limit: float = 120) -> Any:
    """Wait for what commands show; each of them takes seconds on a busy machine."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {limit:g} s in vain for: {what}"
    return value


def configuration() -> dict[str, Any]:
    return {
        "version": 1,
        "scalers": [
            {
                "name": label,
                "type": "bare-metal",
                "maxAgents": 1 if label == "single" else 5,
                "stopGraceSeconds": 2,
                "labelSets": [
                    {"labels": [label], "user": "nobody", "env": {"HATCHWAY_AGENT_COMMAND": json.dumps(command)}}
                ],
            }
            for label, command in LABEL_SETS.items()
        ],
    }


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory that the embedded servers' own users can reach."""
    with private_directory("hatchway-cli-") as path:
        path.chmod(0o711)
        yield path


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[Stack]:
    """One stack for all tests of the commands. Shared: use job ids of your own."""
    with private_directory("hatchway-cli-") as path:
        path.chmod(0o711)
        config = path / "config.yaml"
        config.write_text(json.dumps(configuration()))
        stack = Stack(path / "stack", config)
        await stack.start()
        try:
            yield stack
        finally:
            assert await let_agents_go(stack) == []
            await stack.stop()


@pytest.fixture
def hatchway(stack: Stack) -> Hatchway:
    """The command line, pointed at the stack."""
    return Hatchway(stack.environment())


@pytest.fixture
def elsewhere() -> Hatchway:
    """The command line, pointed nowhere."""
    return Hatchway()


ProcessesIn = Callable[[Path], list[str]]


@pytest.fixture
def processes_in() -> ProcessesIn:
    """Every process whose command line, environment or working directory names a directory."""

    def find(directory: Path) -> list[str]:
        return [
            f"{entry.name}: {(entry / 'cmdline').read_bytes().decode(errors='replace')}"
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and int(entry.name) != os.getpid() and _names(entry, str(directory))
        ]

    return find


def _names(process: Path, directory: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        return directory.encode() in words or os.readlink(process / "cwd").startswith(directory)
    except OSError:  # it has ended meanwhile, or is the kernel's
        return False


NOBODY = "127.0.0.1:1"
"""Where no Temporal listens: a command that needs none must not ask for one."""


def scaler(name: str = "metal", **keys: Any) -> dict[str, Any]:
    return {"name": name, "type": "bare-metal", "maxAgents": 4, "labelSets": [{"labels": [name]}], **keys}


def write(file: Path, *scalers: dict[str, Any], **keys: Any) -> str:
    file.write_text(json.dumps({"version": 1, "scalers": list(scalers) or [scaler()], **keys}))
    return str(file)


@pytest.fixture
def cluster(database_url: str) -> Hatchway:
    """The command line of a cluster whose database is fresh."""
    return Hatchway({"DATABASE_URL": database_url, "TEMPORAL_ADDRESS": NOBODY})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hatchway.yaml"


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url) as opened:
        yield opened
