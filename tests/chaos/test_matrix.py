"""The kill matrix: each component is killed, paused, cut off and restarted while a provision stands at each point.

`CHAOS_CELLS=all` runs every cell that can occur and writes `docs/guarantees.md`; otherwise those of CI run.
"""

from __future__ import annotations

import os

import pytest

from tests.support.chaos import guarantees
from tests.support.chaos.campaign import Campaign
from tests.support.chaos.cells import MOST_IN_CI, every_cell, in_ci, possible
from tests.support.chaos.fleet import running_fleet

MOST_S = 2400


@pytest.mark.scenario("S01", "S02", "S05", "S14", "S37")
@pytest.mark.timeout(MOST_S)
async def test_whatever_dies_at_whatever_point_nothing_leaks_and_nothing_busy_is_ended() -> None:
    everything = os.environ.get("CHAOS_CELLS") == "all"
    cells = possible() if everything else in_ci()
    async with running_fleet() as fleet:
        campaign = Campaign(fleet)

        await campaign.run(cells)

        if everything:
            guarantees.write("matrix", guarantees.matrix(campaign.results))
        assert [str(violation) for violation in campaign.violations] == []
        assert [str(result) for result in campaign.results if not result.green] == []
        assert len(campaign.results) == len(cells)


def test_the_matrix_names_every_combination_and_says_why_one_cannot_occur() -> None:
    cells = list(every_cell())

    assert len(cells) == len(set(cells)) == 6 * 4 * 9
    assert all(cell.impossible for cell in set(cells) - set(possible()))
    assert set(in_ci()) <= set(possible())
    assert len(in_ci()) <= MOST_IN_CI
    assert {(cell.component, cell.point) for cell in in_ci()} == {(cell.component, cell.point) for cell in possible()}
