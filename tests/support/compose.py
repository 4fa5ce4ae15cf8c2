"""One composed Hatchway: its own project, its own ports and passwords, gone with its volumes at the end."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.services import compose_binary

ROOT = Path(__file__).parent.parent.parent
READY_TIMEOUT_S = 120.0
LONG_RUNNING = ("postgres", "temporal", "ui", "gateway", "worker")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@dataclass(frozen=True)
class Composed:
    """A project of docker-compose.yml in a directory of its own."""

    directory: Path
    project: str
    environment: Mapping[str, str]
    ui_port: int
    gateway_port: int

    def compose(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `docker compose`. A failure that was not expected shows what it printed, and the services' last lines."""
        done = subprocess.run(
            [compose_binary(), "--project-name", self.project, *arguments],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            logs = "" if arguments[0] == "logs" else self.logs()
            raise AssertionError(f"compose {' '.join(arguments)}: {done.stdout}\n{done.stderr}\n{logs[-6000:]}")
        return done

    def configuration(self, *arguments: str) -> dict[str, Any]:
        """The file as compose reads it, with variables filled in."""
        loaded: dict[str, Any] = json.loads(self.compose(*arguments, "config", "--format", "json").stdout)
        return loaded

    def logs(self) -> str:
        return self.compose("logs", "--no-color", check=False).stdout

    def containers(self) -> list[dict[str, Any]]:
        """`docker inspect` of every container of the project, ended ones included."""
        ids = self.compose("ps", "--all", "--quiet").stdout.split()
        inspected: list[dict[str, Any]] = json.loads(
            subprocess.run(["docker", "inspect", *ids], capture_output=True, text=True, check=True).stdout
        )
        return inspected

    def wait_until_healthy(self) -> None:
        """Until every service that stays up is up, and every health check that there is says so."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            states = {
                c["Config"]["Labels"]["com.docker.compose.service"]: c["State"].get("Health", c["State"])["Status"]
                for c in self.containers()
            }
            waiting = {s: states.get(s) for s in LONG_RUNNING if states.get(s) not in ("healthy", "running")}
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"not up after {READY_TIMEOUT_S:.0f} s: {waiting}\n{self.logs()[-6000:]}")
            time.sleep(0.5)


@contextmanager
def composed(directory: Path, images: Mapping[str, str]) -> Iterator[Composed]:
    """A project whose files and passwords are in `directory`; not started yet."""
    shutil.copy2(ROOT / "docker-compose.yml", directory)
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    subprocess.run(["sh", directory / "deploy/compose-secrets.sh"], check=True, capture_output=True)
    ui_port, gateway_port = free_ports(2)
    environment = {**images, "HATCHWAY_UI_PORT": str(ui_port), "HATCHWAY_GATEWAY_PORT": str(gateway_port)}
    project = Composed(directory, f"hatchway-test-{secrets.token_hex(4)}", environment, ui_port, gateway_port)
    try:
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "3", check=False)
