"""A burst of a hundred in which a tenth of the creates' replies are lost. `make chaos` runs a thousand."""

from __future__ import annotations

import pytest

from tests.integration.reclaim.burst import burst
from tests.integration.reclaim.rig import Home

BURST = 100


@pytest.mark.scenario("S03")
async def test_after_a_burst_with_lost_replies_what_runs_is_what_has_a_row(home: Home) -> None:
    await burst(home, BURST)
