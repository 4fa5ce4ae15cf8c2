from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hatchway.store.pool import Database
from tests.integration.reap.facts import quick
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """The workflows with a scripted backend and short windows, and no schedule: a test sweeps when it means to."""
    async with running_lab(namespaces, database_url, quick()) as running:
        yield running


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url, max_size=20) as opened:
        yield opened
