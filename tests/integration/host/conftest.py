"""Bare-metal agents on this host."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.bare_metal import BareMetalHarness, bare_metal_harness


@pytest.fixture
async def harness() -> AsyncIterator[BareMetalHarness]:
    async with bare_metal_harness() as harness:
        yield harness
