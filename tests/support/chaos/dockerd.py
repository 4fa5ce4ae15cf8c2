"""A Docker daemon of a test's own, with a containerd of its own, which may be killed: the machine's is not touched.

It shares nothing with another daemon: root, runtime directory, socket, pid file, bridge and control groups are its own,
and it sets no firewall rule and no routing. Its containers reach this machine at `address`, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

import docker
from docker.errors import DockerException

from tests.support.chaos.processes import signal_tree
from tests.support.namespaces import until

ENDS_WITHIN_S = 60.0
NETWORKS = range(1, 250)


class Dockerd:
    """`async with Dockerd(live_restore=…)`: it runs and answers; whatever it made is gone afterwards."""

    def __init__(self, *, live_restore: bool) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hatchway-dockerd-"))
        self._live_restore = live_restore
        self._bridge = f"hwd{uuid.uuid4().hex[:8]}"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """This machine's, as its containers see it."""

    @property
    def socket(self) -> Path:
        return self._directory / "docker.sock"

    @property
    def log(self) -> Path:
        return self._directory / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=f"unix://{self.socket}", timeout=60)

    async def __aenter__(self) -> Self:
        try:
            self._make_bridge()
            await self.start()
        except BaseException:
            await self._leave_nothing()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave_nothing()

    async def start(self) -> None:
        """Start it, after a kill as well, and wait until it answers."""
        root = self._directory
        (root / "daemon.json").write_text(json.dumps({"live-restore": self._live_restore}))
        with suppress(FileNotFoundError):
            (root / "docker.pid").unlink()  # of one that was killed: its pid may be somebody else's by now
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", "--config-file", root / "daemon.json", "--data-root", root / "data",
                 "--exec-root", root / "exec", "--pidfile", root / "docker.pid", "--host", f"unix://{self.socket}",
                 "--bridge", self._bridge, "--iptables=false", "--ip-forward=false", "--ip-masq=false",
                 "--userland-proxy=false", "--cgroup-parent", f"/{self._bridge}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        await until(self._answers, what=f"the test's own dockerd, whose log is {self.log}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> None:
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, ENDS_WITHIN_S, what="the test's own dockerd ends")

    async def kill(self) -> None:
        """As a crash. Its containerd, which is its child, dies of that, and its containers go on."""
        containerd = int((self._directory / "exec" / "containerd" / "containerd.pid").read_text())
        self.signal(signal.SIGKILL)
        await self.ended()
        # The next dockerd takes a containerd for its own while that pid is there at all, and waits for it in vain.
        await until(lambda: not Path(f"/proc/{containerd}").exists(), ENDS_WITHIN_S, what="its containerd ends")

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-2000:]
        return await asyncio.to_thread(self._ping)

    def _ping(self) -> bool:
        try:
            client = self.client()  # asks for the version
        except DockerException:
            return False
        client.close()
        return True

    # ── its surroundings ────────────────────────────────────────────────────────────────────────────────────────

    def _make_bridge(self) -> None:
        """On a network that no interface of this machine has."""
        taken = subprocess.run(["ip", "-4", "-o", "addr"], check=True, capture_output=True, text=True).stdout
        free = [number for number in NETWORKS if f" 10.213.{number}." not in taken]
        self.address = f"10.213.{random.choice(free)}.1"  # noqa: S311 - no secret; two runs may look at once
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    async def _leave_nothing(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await self.ended()
        for pid in self._left():  # of one that was killed, and did not come up again: containerd, shims, containers
            signal_tree(pid, signal.SIGKILL)
        if self._process is not None:
            await until(lambda: not self._left(), ENDS_WITHIN_S, what="everything of the test's own dockerd has ended")
        for mounted in self._mounts():
            subprocess.run(["umount", "--lazy", mounted], check=True)
        with suppress(subprocess.CalledProcessError):  # it was not made
            _ip("link", "delete", self._bridge)
        await asyncio.to_thread(shutil.rmtree, self._directory)

    def _left(self) -> list[int]:
        """Processes whose command names its directory."""
        mark, found = str(self._directory).encode(), []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError):
                    if mark in Path(f"/proc/{entry}/cmdline").read_bytes():
                        found.append(int(entry))
        return found

    def _mounts(self) -> list[str]:
        """The innermost first."""
        places = [line.split(" ")[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return sorted((place for place in places if place.startswith(f"{self._directory}/")), reverse=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
