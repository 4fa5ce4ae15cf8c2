"""The event backend keeps what every backend promises, with a customer whose workflows boot real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from hatchway.backends.base import Gone
from hatchway.model import ScaleDownReason
from tests.contract.backend import AnyBackendContract, facts_for, fresh_agent_id, silent, spec_for
from tests.contract.event import EventHarness, proxy_to
from tests.contract.event_crash import POINTS
from tests.support.customer import Customer, FixedConfig, event_scaler
from tests.support.temporal_fixtures import TemporalServer


@pytest.fixture
async def harness(own: Client, served: Customer, temporal: TemporalServer) -> AsyncIterator[EventHarness]:
    if not served.running:
        served.start()
    with proxy_to(temporal.address) as proxy:
        config = FixedConfig.of(event_scaler(served.target(address=proxy.address)))
        harness = EventHarness(own, served, config, proxy, temporal.address)
        yield harness
        served.end_all()
        for backend in harness.made:
            await backend.close()


@pytest.fixture(params=POINTS)
def crash_point(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestEventContract(AnyBackendContract):
    """See `tests/contract/backend.py`."""

    @pytest.mark.scenario("S04")
    async def test_what_is_not_there_is_gone(self, harness: EventHarness) -> None:
        """As of every backend, but for a spawn after a teardown: this customer refuses events out of order."""
        backend, agent_id, never = harness.backend, fresh_agent_id(), fresh_agent_id()
        await backend.spawn(spec_for(harness, agent_id), silent)

        for one in (never, agent_id, agent_id):
            assert await backend.destroy(one, facts_for(backend), ScaleDownReason.SHUTDOWN) == Gone()

        assert await harness.remains(agent_id) == []
