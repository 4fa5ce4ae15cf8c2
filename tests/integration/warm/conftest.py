from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.pools import pooled


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    """One scaler with a warm pool of one, a scripted backend, and no schedule: a test sweeps when it means to."""
    async with running_lab(namespaces, database_url, pooled(size=1)) as running:
        yield running
