from __future__ import annotations

import docker
import pytest
from docker.errors import APIError, ImageNotFound

from hatchway.dev.registry import EmbeddedRegistry
from tests.support.docker_fixtures import RegistryImages
from tests.support.proxy import FaultProxy


def _pull(client: docker.DockerClient, registry: EmbeddedRegistry, reference: str) -> str:
    """Pull, as the test's login; the error in the stream, or nothing."""
    login = {"username": registry.login.username, "password": registry.login.password}
    for line in client.api.pull(reference, auth_config=login, stream=True, decode=True):
        if "error" in line:
            return str(line["error"])
    return ""


PROGRAMS = {
    "agent": (["--version"], ""),
    "python": (["/usr/bin/python3", "-c", "import ssl, ctypes, asyncio, http.client; print(1 + 1)"], "2"),
    "scratch": (["/bin/sh", "-c", "echo $((1 + 1))"], "2"),
    "no_shell": (["/bin/sleep", "0"], ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stand_in_image_is_pulled_with_the_login_and_runs(
    docker_client: docker.DockerClient, registry: EmbeddedRegistry, registry_images: RegistryImages, name: str
) -> None:
    command, printed = PROGRAMS[name]
    reference = getattr(registry_images, name)

    error = _pull(docker_client, registry, reference)
    output = docker_client.containers.run(reference, command, remove=True)

    assert error == ""
    assert printed in output.decode()


@pytest.mark.parametrize(
    ("name", "command"), [("scratch", ["/usr/bin/python3"]), ("no_shell", ["/bin/sh"]), ("no_shell", ["python3"])]
)
def test_a_stand_in_image_lacks_what_its_name_says(
    docker_client: docker.DockerClient,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    name: str,
    command: list[str],
) -> None:
    reference = getattr(registry_images, name)
    _pull(docker_client, registry, reference)
    container = docker_client.containers.create(reference, command)

    try:
        with pytest.raises(APIError, match=r"no such file|not found"):
            container.start()
    finally:
        container.remove()


def test_the_registry_refuses_a_wrong_password(
    docker_client: docker.DockerClient, registry: EmbeddedRegistry, registry_images: RegistryImages
) -> None:
    wrong = {"username": registry.login.username, "password": "wrong"}

    with pytest.raises(APIError, match="unauthorized"):
        docker_client.api.pull(registry_images.agent, auth_config=wrong)


def test_an_image_of_another_architecture_is_pulled_all_the_same(
    docker_client: docker.DockerClient, registry: EmbeddedRegistry, registry_images: RegistryImages
) -> None:
    error = _pull(docker_client, registry, registry_images.wrong_architecture)

    pulled = docker_client.images.get(registry_images.wrong_architecture).attrs["Architecture"]
    assert error == ""
    assert pulled != docker_client.api.version()["Arch"]


@pytest.mark.parametrize(
    ("name", "said"), [("other_platform_only", "no matching manifest"), ("corrupt", "verification failed")]
)
def test_an_image_that_cannot_be_pulled_says_so_in_the_stream_only(
    docker_client: docker.DockerClient,
    registry: EmbeddedRegistry,
    registry_images: RegistryImages,
    name: str,
    said: str,
) -> None:
    reference = getattr(registry_images, name)

    error = _pull(docker_client, registry, reference)

    assert said in error
    with pytest.raises(ImageNotFound):
        docker_client.images.get(reference)


def test_a_hung_registry_answers_again_after_it_is_resumed(registry: EmbeddedRegistry) -> None:
    digest = registry.put_index("team/empty:1", [])

    registry.hang()
    registry.resume()

    assert registry.reference("team/empty:1").startswith("127.0.0.1:")
    assert registry.digest("team/empty:1") == registry.digest("team/empty:1") != digest


def test_a_stopped_registry_comes_back_with_its_port_and_content(
    registry: EmbeddedRegistry, registry_images: RegistryImages
) -> None:
    before = registry.digest("team/agent:1")

    registry.stop()
    registry.start()

    assert registry.digest("team/agent:1") == before
    assert registry_images.agent.startswith(registry.host)


def test_the_engine_can_be_cut_off_and_healed(engine_proxy: FaultProxy) -> None:
    client = docker.DockerClient(base_url=f"tcp://{engine_proxy.address}", version="1.41", timeout=5)
    assert client.ping()

    engine_proxy.cut()
    with pytest.raises(Exception, match="Connection"):
        client.ping()
    engine_proxy.heal()

    assert client.ping()
    client.close()
