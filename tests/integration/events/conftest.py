"""Hatchway on one side, a customer on the other: a namespace of theirs, their worker, their machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.integration.events.https_rig import Names
from tests.support.customer import Customer, a_customer, fresh_agent_id
from tests.support.namespaces import Namespaces
from tests.support.tls_receiver import Receiver, a_receiver


@pytest.fixture(scope="module")
async def served(namespaces: Namespaces) -> AsyncIterator[Customer]:
    """The example's worker, whose agents serve until they are drained."""
    async with a_customer(namespaces) as one:
        yield one


@pytest.fixture(scope="module")
async def own(namespaces: Namespaces) -> Client:
    """Hatchway's own namespace, where nothing but a client is needed."""
    return await namespaces.take()


@pytest.fixture(scope="module")
async def shared(namespaces: Namespaces) -> AsyncIterator[Customer]:
    async with a_customer(namespaces, serving=False) as one:
        yield one


@pytest.fixture
async def customer(shared: Customer) -> AsyncIterator[Customer]:
    """One who is away until a test starts them: each test has a task queue of its own."""
    one = replace(shared, queue=f"queue-{fresh_agent_id()}", _running=[])
    yield one
    await one.stop()


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with a_receiver(tmp_path) as one:
        yield one
