"""The bare-metal backend keeps the contract of every backend, with real processes."""

from __future__ import annotations

import pytest

from tests.contract.backend import BackendContract
from tests.contract.bare_metal_crash import POINTS


@pytest.fixture(params=list(POINTS))
def crash_point(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestBareMetalContract(BackendContract):
    """See `tests/contract/backend.py`."""
