"""The container backend keeps the contract of every backend, on a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import docker
import pytest

from tests.contract.backend import BackendContract
from tests.docker.backends.contract import ContainerHarness, build_images, remove_images
from tests.docker.backends.crash import POINTS
from tests.support.proxy import FaultProxy


@pytest.fixture(scope="module")
def images_built(docker_client: docker.DockerClient) -> Iterator[None]:
    build_images(docker_client)
    yield
    remove_images(docker_client)


@pytest.fixture
async def harness(
    images_built: None, docker_client: docker.DockerClient, engine_proxy: FaultProxy, installation: str
) -> AsyncIterator[ContainerHarness]:
    harness = ContainerHarness(docker_client, engine_proxy, installation)
    yield harness
    await harness.close()


@pytest.fixture(params=list(POINTS))
def crash_point(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestContainerContract(BackendContract):
    """See `tests/contract/backend.py`."""
