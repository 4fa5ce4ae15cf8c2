"""Real Temporal servers for a whole run: one with a real clock, one that skips time for each workflow by itself."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from hatchway.converter import data_converter
from hatchway.dev.temporal import EmbeddedTemporal, dev_server_arguments, temporal_binary
from tests.support.namespaces import Namespaces


@dataclass
class TemporalServer:
    """The run's dev server, and a client of it that speaks our payload models."""

    server: EmbeddedTemporal
    client: Client

    @property
    def address(self) -> str:
        return self.server.address


async def connect(address: str, namespace: str = "default") -> Client:
    """A client with the converter that Hatchway's own clients use."""
    return await Client.connect(address, namespace=namespace, data_converter=data_converter)


@pytest.fixture(scope="session")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalServer]:
    """A dev server in memory, with the settings of `hatchway dev`. Shared: take `task_queue` and ids of your own."""
    directory = tmp_path_factory.mktemp("temporal")
    async with EmbeddedTemporal(directory, persistent=False, ui=False) as server:
        yield TemporalServer(server, await connect(server.address))


@pytest.fixture(scope="session")
async def namespaces(temporal: TemporalServer) -> AsyncIterator[Namespaces]:
    """Namespaces of the run's dev server, one for each test that runs workers: they poll queues with fixed names."""
    made = Namespaces(temporal.address)
    yield made
    made.stop()


@pytest.fixture(scope="session")
async def temporal_skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A dev server where each workflow has its own clock, which jumps to the next timer when nothing else is to do.

    A workflow started through `env.client` skips at once and without bound. One that must meet an update or a signal on
    its way is started inside `with env.with_time_skipping_disabled():`, then moved by `env.fast_forward(handle, …)`.
    """
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(temporal_binary()),
        dev_server_extra_args=dev_server_arguments(),
        dev_server_log_level="error",
        data_converter=data_converter,
    ) as environment:
        yield environment


@pytest.fixture
def task_queue() -> str:
    """A task queue that no other test polls."""
    return f"test-{uuid.uuid4().hex}"
