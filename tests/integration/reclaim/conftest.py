from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.reclaim.rig import Home, SharedCloud, at_home
from tests.support.namespaces import Namespaces


@pytest.fixture
async def home(namespaces: Namespaces, database_url: str) -> AsyncIterator[Home]:
    """One installation; a test triggers its passes."""
    async with at_home(await namespaces.take(), database_url, SharedCloud()) as running:
        yield running
