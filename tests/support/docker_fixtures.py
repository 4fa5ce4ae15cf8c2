"""A real registry with a password, stand-in images in it and in the local engine, and a faulty way to the engine.

Images are packed from this machine's files; in the engine they are cached by their content, so that only the first run
of all pays for the import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import docker
import pytest
from docker.errors import APIError, ImageNotFound

from hatchway.dev import images
from hatchway.dev.images import Image
from hatchway.dev.registry import EmbeddedRegistry
from tests.support.proxy import FaultProxy

LOCAL = "hatchway-test"
ENGINE_SOCKET = Path("/var/run/docker.sock")


@dataclass(frozen=True)
class RegistryImages:
    """References of the stand-in images in the run's registry. Pulling any of them needs its login."""

    agent: str
    """Its entrypoint is the reference agent."""
    python: str
    """Python and a shell, no entrypoint: for `agent: inject`."""
    scratch: str
    """A shell, no Python."""
    no_shell: str
    """Only /bin/sleep."""
    wrong_architecture: str
    """A single manifest for an architecture that is not this machine's: a pull of it succeeds."""
    other_platform_only: str
    """An index that offers only another platform: a pull of it finds no manifest."""
    corrupt: str
    """Its layer does not match its digest."""


def _foreign_architecture() -> str:
    return "arm64" if images.machine_architecture() != "arm64" else "amd64"


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """The local engine, as the environment names it."""
    client = docker.from_env(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def registry_server(
    tmp_path_factory: pytest.TempPathFactory, docker_client: docker.DockerClient
) -> Iterator[EmbeddedRegistry]:
    """The run's registry. Tests take `registry`, which puts right what they did to it."""
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as server:
        yield server
        forget_images(docker_client, server.host)


@pytest.fixture
def registry(registry_server: EmbeddedRegistry) -> Iterator[EmbeddedRegistry]:
    """The run's registry, running; whatever a test stops or hangs runs again for the next one."""
    yield registry_server
    registry_server.resume()


@pytest.fixture(scope="session")
def registry_images(registry_server: EmbeddedRegistry) -> RegistryImages:
    """The stand-in images, uploaded."""
    bare = images.bare_image()
    foreign = replace(bare, architecture=_foreign_architecture())
    # One byte more than any other image, so that no pull finds its layer in the engine already.
    spoilt = replace(images.busybox_image(), layer=images.busybox_image().layer + bytes(512))
    corrupt = registry_server.put("team/corrupt:1", spoilt)
    registry_server.corrupt("team/corrupt:1")
    return RegistryImages(
        agent=registry_server.put("team/agent:1", images.agent_image()),
        python=registry_server.put("team/python:1", images.python_image()),
        scratch=registry_server.put("team/scratch:1", images.busybox_image()),
        no_shell=registry_server.put("team/no-shell:1", bare),
        wrong_architecture=registry_server.put("team/foreign:1", foreign),
        other_platform_only=registry_server.put_index("team/elsewhere:1", [foreign]),
        corrupt=corrupt,
    )


def import_image(client: docker.DockerClient, name: str, image: Image) -> str:
    """Make `image` known to the engine as `hatchway-test/NAME:DIGEST`, unless it already is; that tag."""
    repository, version = f"{LOCAL}/{name}", image.digest[:16]
    reference = f"{repository}:{version}"
    try:
        client.images.get(reference)
    except ImageNotFound:
        settings = [f"ENV {key}={value}" for key, value in image.env.items()]
        if image.entrypoint:
            settings.append("ENTRYPOINT [" + ", ".join(f'"{word}"' for word in image.entrypoint) + "]")
        client.api.import_image_from_data(image.layer, repository=repository, tag=version, changes=settings)
    return reference


def forget_images(client: docker.DockerClient, host: str) -> None:
    """Remove every image of `host` from the engine. One that is still in use is a failure: some test leaks."""
    in_use: list[str] = []
    for image in client.images.list():
        for reference in [*image.tags, *image.attrs.get("RepoDigests", [])]:
            if reference.startswith(host + "/"):
                try:
                    client.images.remove(reference)
                except ImageNotFound:
                    # Removing an image's last tag removes its digests with it.
                    continue
                except APIError as e:
                    in_use.append(str(e.explanation))
    if in_use:
        pytest.fail("a test left containers behind: " + "; ".join(in_use), pytrace=False)


@pytest.fixture(scope="session")
def agent_image(docker_client: docker.DockerClient) -> str:
    """A local image whose entrypoint is the reference agent."""
    return import_image(docker_client, "agent", images.agent_image())


@pytest.fixture(scope="session")
def python_image(docker_client: docker.DockerClient) -> str:
    """A local image with Python and a shell."""
    return import_image(docker_client, "python", images.python_image())


@pytest.fixture(scope="session")
def scratch_image(docker_client: docker.DockerClient) -> str:
    """A local image with a shell and no Python."""
    return import_image(docker_client, "scratch", images.busybox_image())


@pytest.fixture(scope="session")
def no_shell_image(docker_client: docker.DockerClient) -> str:
    """A local image with neither shell nor Python."""
    return import_image(docker_client, "no-shell", images.bare_image())


@pytest.fixture
def engine_proxy() -> Iterator[FaultProxy]:
    """A way to the local engine that can be cut and made to hang: `tcp://` + its address."""
    with FaultProxy(ENGINE_SOCKET) as proxy:
        yield proxy


def bridge_address(client: docker.DockerClient) -> str:
    """This machine's address on the engine's default network, where containers reach it."""
    entry = client.networks.get("bridge").attrs["IPAM"]["Config"][0]
    return str(entry.get("Gateway") or entry["Subnet"].rpartition(".")[0] + ".1")
