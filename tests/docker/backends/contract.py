"""The container backend's side of the contract suite: what the engine shows of its agents to anybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
from docker.errors import NotFound

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.dev import images
from hatchway.model import ScaleDownReason
from tests.contract.backend import CLAIM, EXIT_CODE, Behaviour, facts_for
from tests.docker.backends.rig import HOST_ID
from tests.support.proxy import FaultProxy

REPOSITORY = "hatchway-test/contract"
CALL_TIMEOUT = timedelta(seconds=10)

ENTRYPOINTS = {
    Behaviour.RUNS: ["/bin/sleep", "3600"],
    Behaviour.IGNORES_TERM: ["/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 3600"],
    Behaviour.EXITS: [
        "/bin/sh",
        "-c",
        'echo "claim: $KICI_SCALER_CLAIM_CODE"; printf "x:%s" "$KICI_SCALER_CLAIM_CODE" | busybox base64 -w0; echo; '
        f"echo the last line; exit {EXIT_CODE}",
    ],
    Behaviour.UNSTARTABLE: ["/nonexistent/agent"],
}


def image_of(behaviour: Behaviour) -> str:
    return f"{REPOSITORY}:{behaviour.name.lower()}"


def build_images(client: docker.DockerClient) -> None:
    """One image per behaviour, on the engine only."""
    bare = images.busybox_image()
    for behaviour, entrypoint in ENTRYPOINTS.items():
        changes = [f"ENV PATH={images.PATH}", f"ENTRYPOINT {json.dumps(entrypoint)}"]
        _, _, tag = image_of(behaviour).partition(":")
        client.api.import_image_from_data(bare.layer, repository=REPOSITORY, tag=tag, changes=changes)


def container_spec(agent_id: str, image: str, env: Mapping[str, str], installation: str) -> SpawnSpec:
    label_set = LabelSet(labels=["linux"], image=image)
    scaler = Scaler(
        name="docker", type=ScalerType.CONTAINER, max_agents=100, label_sets=[label_set], network_isolation=False
    )
    return SpawnSpec(
        agent_id=agent_id,
        scaler=scaler,
        label_set=label_set,
        labels=("linux",),
        installation_id=installation,
        env=env,
        image=image,
        secret_values=frozenset({CLAIM}),
        stop_grace=timedelta(seconds=1),
    )


class ContainerHarness:
    """One engine behind a proxy that can be cut, and the workers that share it."""

    base_environment = frozenset({"PATH", "HOSTNAME", "HOME"})

    def __init__(self, client: docker.DockerClient, proxy: FaultProxy, installation: str) -> None:
        self.client = client
        self.proxy = proxy
        self.installation = installation
        self.backends: list[ContainerBackend] = []
        self.backend = self._build(installation)

    def _build(self, installation: str) -> ContainerBackend:
        backend = ContainerBackend(HOST_ID, f"tcp://{self.proxy.address}", installation, call_timeout=CALL_TIMEOUT)
        self.backends.append(backend)
        return backend

    async def another(self, installation_id: str | None = None) -> ContainerBackend:
        return self._build(installation_id or self.installation)

    def spec(self, agent_id: str, behaviour: Behaviour, env: Mapping[str, str]) -> SpawnSpec:
        return container_spec(agent_id, image_of(behaviour), env, self.installation)

    def _containers(self, agent_id: str) -> list[dict[str, Any]]:
        """By label and by name: one that lost its labels would be a leak all the same."""
        found: dict[str, dict[str, Any]] = {}
        for filters in ({"label": [f"kici-agent-id={agent_id}"]}, {"name": agent_id}):
            found |= {c["Id"]: c for c in self.client.api.containers(all=True, filters=filters)}
        return list(found.values())

    async def live(self, agent_id: str) -> int:
        containers = await asyncio.to_thread(self._containers, agent_id)
        return sum(c["State"] == "running" for c in containers)

    async def remains(self, agent_id: str) -> list[str]:
        containers = await asyncio.to_thread(self._containers, agent_id)
        return [f"{c['Names']} {c['State']}" for c in containers]

    async def environment(self, agent_id: str) -> dict[str, str]:
        (container,) = self._containers(agent_id)
        ran = self.client.containers.get(container["Id"]).exec_run(["/bin/cat", "/proc/1/environ"])
        assert isinstance(ran.output, bytes)
        environ = ran.output.decode()
        return {name: value for name, _, value in (entry.partition("=") for entry in environ.split("\0") if entry)}

    async def exposed(self, agent_id: str) -> str:
        """The engine's list, the processes as their machine shows them, and what an operator is shown of the log."""
        containers = self._containers(agent_id)
        shown = [json.dumps(c) for c in containers]
        shown += [json.dumps(self.client.api.top(c["Id"])) for c in containers if c["State"] == "running"]
        return "\n".join([*shown, await self.backend.logs(agent_id)])

    async def kill_from_outside(self, agent_id: str) -> None:
        (container,) = self._containers(agent_id)
        self.client.api.kill(container["Id"])

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.proxy.cut()
        try:
            yield
        finally:
            self.proxy.heal()

    async def crash_during_spawn(self, spec: SpawnSpec, point: str) -> None:
        order = {
            "agent_id": spec.agent_id,
            "image": spec.image,
            "env": dict(spec.env),
            "installation": self.installation,
            "point": point,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.docker.backends.crash",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
        said = await asyncio.wait_for(child.stdout.readline(), 120)
        child.kill()
        await child.wait()
        assert said == b"reached\n", f"the spawn did not come to {point!r}"

    async def close(self) -> None:
        async for owned in self.backend.owned():
            await self.backend.destroy(owned.agent_id, facts_for(self.backend), ScaleDownReason.SHUTDOWN)
        for backend in self.backends:
            await backend.close()


def remove_images(client: docker.DockerClient) -> None:
    for behaviour in Behaviour:
        with contextlib.suppress(NotFound):
            client.api.remove_image(image_of(behaviour))
