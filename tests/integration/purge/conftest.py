from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hatchway.store.pool import Database
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    async with running_lab(namespaces, database_url) as running:
        yield running


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url) as opened:
        yield opened
