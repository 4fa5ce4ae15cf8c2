from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.reap.facts import gateway, quick
from tests.integration.reclaim.rig import Home, SharedCloud, at_home
from tests.support.namespaces import Namespaces


@pytest.fixture
async def home(namespaces: Namespaces, database_url: str) -> AsyncIterator[Home]:
    """One installation with short windows and a gateway; a test triggers its sweeps and its reclaim passes."""
    async with at_home(await namespaces.take(), database_url, SharedCloud()) as running:
        await running.lab.apply(quick(maxAgents=20, stopGraceSeconds=0))
        await gateway(running.lab.db)
        yield running
