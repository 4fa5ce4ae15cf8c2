"""A container backend of its own for every test, and nothing of it left afterwards."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import docker
import pytest

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.registry.auth import RegistryAuth
from tests.docker.backends.rig import (
    HOST_ID,
    LocalImage,
    MakeBackend,
    MakeSpec,
    ShellImage,
    containers_of,
    forget,
    remove_containers,
)
from tests.support.proxy import FaultProxy

BUILT = "hatchway-test/built"


@pytest.fixture
def installation() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def spec(installation: str) -> MakeSpec:
    def make(image: str | None, **fields: Any) -> SpawnSpec:
        label_fields = {k: fields.pop(k) for k in list(fields) if k in LabelSet.model_fields and k != "env"}
        scaler_fields = {k: fields.pop(k) for k in list(fields) if k in Scaler.model_fields}
        label_set = LabelSet(labels=["linux"], image=image, **label_fields)
        scaler = Scaler(
            name="docker",
            type=ScalerType.CONTAINER,
            max_agents=10,
            label_sets=[label_set],
            **{"network_isolation": False, **scaler_fields},
        )
        settings: dict[str, Any] = {
            "agent_id": f"scaler-{uuid.uuid4().hex}",
            "installation_id": installation,
            "env": {"KICI_SCALER_MANAGED": "1"},
            "stop_grace": timedelta(seconds=5),
        }
        return SpawnSpec(
            scaler=scaler, label_set=label_set, labels=("linux", "kici:os:linux"), image=image, **settings | fields
        )

    return make


@pytest.fixture
async def make_backend(installation: str) -> AsyncIterator[MakeBackend]:
    made: list[ContainerBackend] = []

    def make(base_url: str | None = None, **settings: Any) -> ContainerBackend:
        made.append(ContainerBackend(HOST_ID, base_url, installation, **settings))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
def backend(make_backend: MakeBackend) -> ContainerBackend:
    return make_backend()


@pytest.fixture
def proxied(engine_proxy: FaultProxy, make_backend: MakeBackend) -> ContainerBackend:
    """A backend whose way to the engine can be cut; each of its calls may take 3 s."""
    return make_backend(f"tcp://{engine_proxy.address}", call_timeout=timedelta(seconds=3))


@pytest.fixture(autouse=True)
def _nothing_left(docker_client: docker.DockerClient, installation: str) -> Iterator[None]:
    """Remove what a test made, also when it failed."""
    yield
    remove_containers(docker_client, installation)


@pytest.fixture
def ours(docker_client: docker.DockerClient, installation: str) -> Callable[[], list[dict[str, Any]]]:
    """What this test's installation has on the engine, in any state."""
    return lambda: containers_of(docker_client, installation)


@pytest.fixture(scope="session")
def local_image(docker_client: docker.DockerClient, scratch_image: str) -> Iterator[LocalImage]:
    made: set[str] = set()

    def make(entrypoint: list[str], *changes: str) -> str:
        settings = "\n".join([f"ENTRYPOINT {json.dumps(entrypoint)}", *changes])
        tag = hashlib.sha256(settings.encode()).hexdigest()[:16]
        name = f"{BUILT}:{tag}"
        if name not in made:
            container = docker_client.api.create_container(scratch_image, command=["x"])["Id"]
            docker_client.api.commit(container, repository=BUILT, tag=tag, changes=settings)
            docker_client.api.remove_container(container)
            made.add(name)
        return name

    yield make
    for name in made:
        docker_client.api.remove_image(name, force=True)


@pytest.fixture(scope="session")
def shell_image(local_image: LocalImage) -> ShellImage:
    return lambda script, *changes: local_image(["/bin/sh", "-c", script], *changes)


@pytest.fixture
def idle_image(shell_image: ShellImage) -> str:
    """A local image whose agent runs until it is told to stop."""
    return shell_image("exec sleep 3600")


@pytest.fixture
def login(registry: EmbeddedRegistry) -> RegistryAuth:
    """The registry's own user, as a job would bring it."""
    return RegistryAuth(registry.host, registry.login.username, registry.login.password)


@pytest.fixture
def clean_images(docker_client: docker.DockerClient, registry: EmbeddedRegistry, installation: str) -> Iterator[None]:
    """The engine holds nothing of the run's registry, and no repository of it counts as private."""
    forget(docker_client, registry.host)
    yield
    remove_containers(docker_client, installation)
    forget(docker_client, registry.host)


@pytest.fixture(scope="session", autouse=True)
def _no_marks_stay(docker_client: docker.DockerClient, registry_server: EmbeddedRegistry) -> Iterator[None]:
    yield
    forget(docker_client, registry_server.host)
