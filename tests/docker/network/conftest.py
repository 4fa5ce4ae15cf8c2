"""Agents on isolated networks of this test's own installation, in a world that the test made; nothing stays."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import docker
import pytest
from docker.models.containers import Container

from hatchway.backends import container_network
from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from tests.docker.backends.rig import HOST_ID, containers_of, quiet, remove_containers
from tests.docker.network.traces import remove_networks
from tests.docker.network.world import KEPT_FREE, NAMESERVER, NEAR, PORT, World, listener, namespace

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.needs("nftables"))


class MakeSpec(Protocol):
    """A spawn of the idle image; fields of the label set, the scaler and the spec itself by their names."""

    def __call__(self, **fields: Any) -> SpawnSpec: ...


class MakeBackend(Protocol):
    """A worker of this test's installation."""

    def __call__(self, **settings: Any) -> ContainerBackend: ...


class Spawn(Protocol):
    """Spawn an agent with this worker, or one of its own; its container."""

    async def __call__(self, backend: ContainerBackend | None = None, **fields: Any) -> Container: ...


@pytest.fixture(scope="session")
def world(docker_client: docker.DockerClient) -> Iterator[World]:
    bridge = docker_client.api.inspect_network("bridge")
    docker_host = bridge["IPAM"]["Config"][0].get("Gateway") or "172.17.0.1"
    pool = docker.types.IPAMConfig(pool_configs=[docker.types.IPAMPool(KEPT_FREE)])
    kept_free = docker_client.networks.create(f"hatchway-test-{uuid.uuid4().hex[:8]}", ipam=pool)
    with contextlib.ExitStack() as stack:
        stack.callback(kept_free.remove)
        inside = stack.enter_context(namespace([PORT, 5432]))
        ports = [stack.enter_context(listener(address)) for address in (docker_host, docker_host, NEAR)]
        yield World.of(inside, docker_host, *ports)


@pytest.fixture(scope="session")
def idle(docker_client: docker.DockerClient, scratch_image: str) -> Iterator[str]:
    """A local image whose agent runs until it is told to stop."""
    name = "hatchway-test/network:idle"
    container = docker_client.api.create_container(scratch_image, command=["x"])["Id"]
    changes = f"ENTRYPOINT {json.dumps(['/bin/sleep', '3600'])}"
    docker_client.api.commit(container, repository="hatchway-test/network", tag="idle", changes=changes)
    docker_client.api.remove_container(container)
    yield name
    docker_client.api.remove_image(name, force=True)


@pytest.fixture(autouse=True)
def _resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's DNS server is a private address, as in most clouds."""
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"search example\nnameserver {NAMESERVER}\nnameserver 127.0.0.53\nnameserver fd00::1\n")
    monkeypatch.setattr(container_network, "RESOLV_CONF", (conf,))


@pytest.fixture
def installation() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def spec(installation: str, idle: str, world: World) -> MakeSpec:
    def make(**fields: Any) -> SpawnSpec:
        label_fields = {k: fields.pop(k) for k in list(fields) if k in LabelSet.model_fields and k != "env"}
        scaler_fields = {k: fields.pop(k) for k in list(fields) if k in Scaler.model_fields}
        label_set = LabelSet.model_validate({"labels": ["linux"], "image": idle, **label_fields})
        scaler = Scaler(
            name="docker", type=ScalerType.CONTAINER, max_agents=10, label_sets=[label_set], **scaler_fields
        )
        settings: dict[str, Any] = {
            "agent_id": f"scaler-{uuid.uuid4().hex}",
            "installation_id": installation,
            "env": {"KICI_ORCHESTRATOR_URL": world.gateway_url},
            "stop_grace": timedelta(0),
        }
        return SpawnSpec(scaler=scaler, label_set=label_set, labels=("linux",), image=idle, **settings | fields)

    return make


@pytest.fixture
async def make_backend(installation: str) -> AsyncIterator[MakeBackend]:
    made: list[ContainerBackend] = []

    def make(**settings: Any) -> ContainerBackend:
        made.append(ContainerBackend(HOST_ID, None, installation, **settings))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
def backend(make_backend: MakeBackend) -> ContainerBackend:
    return make_backend()


@pytest.fixture
def spawn(make_backend: MakeBackend, spec: MakeSpec, docker_client: docker.DockerClient) -> Spawn:
    async def spawn(backend: ContainerBackend | None = None, **fields: Any) -> Container:
        ref = await (backend or make_backend()).spawn(spec(**fields), quiet)
        return docker_client.containers.get(ref.ref)

    return spawn


@pytest.fixture
def ours(docker_client: docker.DockerClient, installation: str) -> Callable[[], list[dict[str, Any]]]:
    return lambda: containers_of(docker_client, installation)


@pytest.fixture(autouse=True)
def _nothing_left(docker_client: docker.DockerClient, installation: str) -> Iterator[None]:
    """Remove what a test made, also when it failed."""
    yield
    remove_containers(docker_client, installation)
    remove_networks(docker_client, installation)


def order_for(spec: SpawnSpec, installation: str) -> dict[str, str | None]:
    """What `elsewhere` is told to spawn."""
    return {
        "installation": installation,
        "agent_id": spec.agent_id,
        "image": spec.image,
        "url": spec.env["KICI_ORCHESTRATOR_URL"],
    }
