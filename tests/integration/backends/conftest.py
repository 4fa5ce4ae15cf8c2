"""A state directory for bare-metal agents, where their user may pass through."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.bare_metal import BareMetalHarness


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Not under tmp_path: pytest makes that 0700, and an agent that is not us could not enter its own directory."""
    base = Path(tempfile.mkdtemp(prefix="hatchway-"))
    base.chmod(0o711)
    yield base / "state"
    shutil.rmtree(base)


@pytest.fixture
async def harness(state_dir: Path) -> AsyncIterator[BareMetalHarness]:
    harness = BareMetalHarness(state_dir)
    yield harness
    await harness.close()
