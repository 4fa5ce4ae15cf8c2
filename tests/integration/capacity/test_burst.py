"""Four hundred jobs in one moment: each gets its agent, and the servers' part in it is bounded."""

from __future__ import annotations

import pytest

from bench.burst import MANY, MOST_EVENTS, MOST_TRANSACTIONS, running
from tests.support.postgres_fixtures import PostgresServer
from tests.support.temporal_fixtures import TemporalServer

LEAST = 6
"""Reserve, stamp, claim, adopt, close, release: fewer, and they were not counted."""


@pytest.mark.scenario("S40")
async def test_an_agent_of_a_burst_costs_a_bounded_number_of_statements_and_events(
    postgres: PostgresServer, temporal: TemporalServer
) -> None:
    async with running(postgres, temporal.address) as burst:
        taken = await burst.of(MANY)

    assert LEAST <= taken.transactions / MANY <= MOST_TRANSACTIONS
    assert taken.events / MANY <= MOST_EVENTS
