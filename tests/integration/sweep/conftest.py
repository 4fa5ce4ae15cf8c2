from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hatchway.store.pool import Database
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """The workflows with a scripted backend, and no schedule: a test sweeps when it means to."""
    async with running_lab(namespaces, database_url) as running:
        yield running


@pytest.fixture
async def bare_lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """One host, and nobody who runs workflows: a test starts and stops that worker itself."""
    async with Database.open(database_url) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(Cloud()))
        await lab.apply(laptop())
        lab.start_host(lab.backend)
        yield lab
        await lab.stop_host(lab.backend.host_id)
