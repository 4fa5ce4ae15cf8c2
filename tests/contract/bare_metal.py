"""The bare-metal backend's side of the contract suite: what can be seen of its agents from outside, through /proc."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.backends.base import SpawnSpec
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.model import ScaleDownReason
from tests.contract.backend import CLAIM, EXIT_CODE, Behaviour, facts_for

INSTALLATION = "installation-under-test"
CRASH_CHILD = Path(__file__).with_name("bare_metal_crash.py")

COMMANDS = {
    Behaviour.RUNS: ["sleep", "3600"],
    Behaviour.IGNORES_TERM: ["sh", "-c", "trap '' TERM; echo ready; exec sleep 3600"],
    Behaviour.EXITS: [
        "sh",
        "-c",
        'echo "claim: $KICI_SCALER_CLAIM_CODE"; printf "x:%s" "$KICI_SCALER_CLAIM_CODE" | base64 -w0; echo; '
        f"echo the last line; exit {EXIT_CODE}",
    ],
    Behaviour.UNSTARTABLE: ["/nonexistent/agent"],
}


def bare_metal_spec(
    agent_id: str,
    command: list[str] | None,
    env: Mapping[str, str],
    *,
    user: str | None = None,
    run_as_root: bool = False,
    working_directory: str | None = None,
    grace: float = 1.0,
) -> SpawnSpec:
    """A spec for this host. Without a `user`, root becomes nobody: agents do not run as root unless they must."""
    if user is None and not run_as_root and os.geteuid() == 0:
        user = "nobody"
    label_set = LabelSet(
        labels=["linux"], command=command, user=user, run_as_root=run_as_root, working_directory=working_directory
    )
    scaler = Scaler(name="metal", type=ScalerType.BARE_METAL, max_agents=100, label_sets=[label_set])
    return SpawnSpec(
        agent_id=agent_id,
        scaler=scaler,
        label_set=label_set,
        labels=("linux",),
        installation_id=INSTALLATION,
        env=env,
        secret_values=frozenset({CLAIM}),
        stop_grace=timedelta(seconds=grace),
    )


def processes_of(agent_id: str) -> Iterator[int]:
    """The running processes that bear the agent's id in their environment."""
    mark = f"KICI_AGENT_ID={agent_id}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                yield int(name)


def shims_of(agent_id: str) -> Iterator[int]:
    """The running supervisors of the agent, by their command line."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if agent_id.encode() in Path("/proc", name, "cmdline").read_bytes().split(b"\0"):
                yield int(name)


class BareMetalHarness:
    """One state directory on this host, and the workers that share it."""

    base_environment = frozenset({"PATH", "HOME", "LANG"})

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.backends: list[BareMetalBackend] = []
        self.backend = self._build(INSTALLATION)

    def _build(self, installation_id: str) -> BareMetalBackend:
        backend = BareMetalBackend("m-test", self.state_dir, installation_id)
        self.backends.append(backend)
        return backend

    async def another(self, installation_id: str | None = None) -> BareMetalBackend:
        return self._build(installation_id or INSTALLATION)

    def spec(self, agent_id: str, behaviour: Behaviour, env: Mapping[str, str]) -> SpawnSpec:
        return bare_metal_spec(agent_id, COMMANDS[behaviour], env)

    async def live(self, agent_id: str) -> int:
        return len(list(processes_of(agent_id)))

    async def remains(self, agent_id: str) -> list[str]:
        found = [f"process {pid}" for pid in processes_of(agent_id)]
        found += [f"shim {pid}" for pid in shims_of(agent_id)]
        return found + [str(path) for path in self.state_dir.glob(f"*{agent_id}*")]

    async def environment(self, agent_id: str) -> dict[str, str]:
        (pid,) = processes_of(agent_id)
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)

    async def exposed(self, agent_id: str) -> str:
        """Every file of the record, and every command line of this host."""
        texts = [
            path.read_text("utf-8", "replace") for path in (self.state_dir / agent_id).rglob("*") if path.is_file()
        ]
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                texts.append(Path("/proc", name, "cmdline").read_text("utf-8", "replace"))
        return "\n".join(texts)

    async def kill_from_outside(self, agent_id: str) -> None:
        (pid,) = processes_of(agent_id)
        os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """The disk that holds the records is not mounted."""
        away = self.state_dir.with_name("away")
        self.state_dir.rename(away)
        try:
            yield
        finally:
            away.rename(self.state_dir)

    async def crash_during_spawn(self, spec: SpawnSpec, point: str) -> None:
        order = {
            "state_dir": str(self.state_dir),
            "agent_id": spec.agent_id,
            "command": spec.label_set.command,
            "env": dict(spec.env),
            "point": point,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.contract.bare_metal_crash",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
        said = await asyncio.wait_for(child.stdout.readline(), 30)
        child.kill()
        await child.wait()
        assert said == b"reached\n", f"the spawn did not come to {point!r}"

    async def close(self) -> None:
        async for owned in self.backend.owned():
            await self.backend.destroy(owned.agent_id, facts_for(self.backend), ScaleDownReason.SHUTDOWN)
        for backend in self.backends:
            await backend.close()


@contextlib.asynccontextmanager
async def bare_metal_harness() -> AsyncIterator[BareMetalHarness]:
    """A harness with a state directory that an agent's user can pass through, which pytest's own (0700) are not."""
    base = Path(tempfile.mkdtemp(prefix="hatchway-"))
    base.chmod(0o711)
    harness = BareMetalHarness(base / "state")
    try:
        yield harness
    finally:
        await harness.close()
        shutil.rmtree(base)
