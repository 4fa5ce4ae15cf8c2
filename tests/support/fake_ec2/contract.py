"""The EC2 backend's side of the contract suite: what the cloud, and the machines in it, show from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from hatchway.backends.base import SpawnSpec
from hatchway.backends.ec2 import Ec2Backend
from hatchway.config.schema import Scaler
from hatchway.model import ScaleDownReason
from tests.contract.backend import CLAIM, EXIT_CODE, Behaviour, facts_for
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.machine import ENVIRONMENT
from tests.support.fake_ec2.specs import QUICK, ec2_scaler, ec2_spec
from tests.support.fake_ec2.wire import Lost, Parameters
from tests.support.namespaces import until

INSTALLATION = "installation-under-test"

SCRIPTS = {
    Behaviour.RUNS: "exec sleep 3600",
    Behaviour.IGNORES_TERM: "trap '' TERM; echo ready; exec sleep 3600",
    Behaviour.EXITS: 'echo "claim: $KICI_SCALER_CLAIM_CODE"; printf "x:%s" "$KICI_SCALER_CLAIM_CODE" | base64 -w0; '
    f"echo; echo the last line; exit {EXIT_CODE}",
    Behaviour.UNSTARTABLE: "exec sleep 3600",
}

CRASH_POINTS = ("launch not sent", "launched, reply lost", "launch arrives after the worker's end")
LATE_S = 0.3
"""How much later than its worker's death a launch has its effect: well within what the backend waits for."""


class Ec2Harness:
    """One cloud, and the workers that share it."""

    base_environment = ENVIRONMENT

    def __init__(self, cloud: FakeEc2) -> None:
        self.cloud = cloud
        self.backends: list[Ec2Backend] = []
        self.backend = self._build(INSTALLATION)

    def _build(self, installation: str) -> Ec2Backend:
        backend = Ec2Backend(Scaler.model_validate(ec2_scaler(self.cloud.url)), installation, QUICK)
        self.backends.append(backend)
        return backend

    async def another(self, installation_id: str | None = None) -> Ec2Backend:
        return self._build(installation_id or INSTALLATION)

    def _scaler(self, behaviour: Behaviour) -> dict[str, Any]:
        ec2 = {"userData": SCRIPTS[behaviour]}
        if behaviour is Behaviour.UNSTARTABLE:
            ec2["ami"] = "ami-00000000"
        return ec2_scaler(self.cloud.url, ec2=ec2)

    def spec(self, agent_id: str, behaviour: Behaviour, env: Mapping[str, str]) -> SpawnSpec:
        secrets = frozenset({CLAIM})
        return ec2_spec(self._scaler(behaviour), agent_id, env, INSTALLATION, secret_values=secrets)

    async def live(self, agent_id: str) -> int:
        return len(self.cloud.live(agent_id))

    async def remains(self, agent_id: str) -> list[str]:
        """An instance that is terminated is shown for an hour: nothing is left of it but that."""
        machines = self.cloud.of(agent_id)
        found = [f"{m.id} {m.state}" for m in machines if m.state != "terminated"]
        return found + [f"process {pid}" for m in machines if m.inside for pid in m.inside.processes()]

    async def environment(self, agent_id: str) -> dict[str, str]:
        (machine,) = self.cloud.live(agent_id)
        mark = f"KICI_AGENT_ID={agent_id}"

        def booted() -> dict[str, str] | None:
            assert machine.inside is not None
            for pid in machine.inside.processes():
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape")
                    if mark in text:
                        return dict(entry.split("=", 1) for entry in text.split("\0") if entry)
            return None

        found: dict[str, str] = await until(booted, what="a booted agent")
        return found

    async def exposed(self, agent_id: str) -> str:
        """What the account's other users list, the machine's console, and its processes as the machine shows them."""
        texts = []
        for machine in self.cloud.of(agent_id):
            assert machine.inside is not None
            texts += [json.dumps(machine.described()), machine.inside.console.decode()]
            for pid in machine.inside.processes():
                with contextlib.suppress(OSError):
                    texts.append(Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace"))
        return "\n".join(texts)

    async def kill_from_outside(self, agent_id: str) -> None:
        (machine,) = self.cloud.live(agent_id)
        self.cloud.end(machine)

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.cloud.cut = True
        try:
            yield
        finally:
            self.cloud.cut = False

    async def crash_during_spawn(self, spec: SpawnSpec, point: str) -> None:
        reached, killed = threading.Event(), threading.Event()

        def hold(action: str, parameters: Parameters, when: str) -> None:
            if action != "RunInstances" or when != ("after" if point == "launched, reply lost" else "before"):
                return
            self.cloud.held = None
            reached.set()
            killed.wait()
            if point == "launch not sent":
                raise Lost
            if point == "launch arrives after the worker's end":
                threading.Event().wait(LATE_S)

        self.cloud.held = hold
        order = {
            "agent_id": spec.agent_id,
            "scaler": spec.scaler.model_dump(mode="json", by_alias=True, exclude_none=True),
            "env": dict(spec.env),
            "installation": INSTALLATION,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.fake_ec2.crash",
            stdin=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
        try:
            await until(reached.is_set, what=f"a launch at {point!r}")
        finally:
            child.kill()
            await child.wait()
            killed.set()

    async def close(self) -> None:
        left = [owned.agent_id async for owned in self.backend.owned()]
        ends = (self.backend.destroy(one, facts_for(self.backend), ScaleDownReason.SHUTDOWN) for one in left)
        await asyncio.gather(*ends)
        for backend in self.backends:
            await backend.close()
