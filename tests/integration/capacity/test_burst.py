"""Four hundred jobs in one moment: each gets its agent, and none costs the servers more than one that came alone."""

from __future__ import annotations

import pytest

from bench.burst import MANY, MOST_EVENTS, MOST_TRANSACTIONS, running
from tests.support.postgres_fixtures import PostgresServer
from tests.support.temporal_fixtures import TemporalServer


@pytest.mark.scenario("S40")
async def test_an_agent_of_a_burst_costs_no_more_statements_and_events_than_any_other(
    postgres: PostgresServer, temporal: TemporalServer
) -> None:
    async with running(postgres, temporal.address) as burst:
        alone = await burst.of(1)
        taken = await burst.of(MANY)

    assert taken.transactions / MANY <= min(MOST_TRANSACTIONS, alone.transactions + 1)
    assert taken.events / MANY <= min(MOST_EVENTS, alone.events + 1)
