"""The EC2 backend keeps the contract of every backend, on a cloud whose machines boot their user data."""

from __future__ import annotations

import time

import pytest

from hatchway.errors import PermanentSpawnError, SpawnCode
from tests.contract.backend import (
    CLAIM,
    BackendContract,
    Behaviour,
    destroy,
    fresh_agent_id,
    live_becomes,
    owned_ids,
    silent,
    spec_for,
)
from tests.contract.backend import BackendHarness as Harness
from tests.support.fake_ec2.contract import CRASH_POINTS


@pytest.fixture(params=CRASH_POINTS)
def crash_point(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestEc2Contract(BackendContract):
    """See `tests/contract/backend.py`. Two promises read otherwise where compute is a machine of somebody else's."""

    @pytest.mark.scenario("S06", "S15")
    async def test_an_agent_that_cannot_be_started_fails_at_once_and_leaves_nothing(self, harness: Harness) -> None:
        """What cannot be started is an image that is not there; a command is only looked for on the booted machine."""
        agent_id = fresh_agent_id()
        begun = time.monotonic()

        with pytest.raises(PermanentSpawnError) as raised:
            await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.UNSTARTABLE), silent)

        assert raised.value.code is SpawnCode.IMAGE_NOT_FOUND
        assert CLAIM not in str(raised.value)
        assert time.monotonic() - begun < 10
        assert await harness.remains(agent_id) == []

    async def test_owned_lists_what_was_spawned_until_it_is_destroyed(self, harness: Harness) -> None:
        """An instance whose agent has ended is terminated: nothing is left to be owned, or to be destroyed."""
        running, ended, condemned = fresh_agent_id(), fresh_agent_id(), fresh_agent_id()
        for agent_id in (running, condemned):
            await harness.backend.spawn(spec_for(harness, agent_id), silent)
        await harness.backend.spawn(spec_for(harness, ended, Behaviour.EXITS), silent)
        await live_becomes(harness, ended, 0)

        before = await owned_ids(await harness.another())
        await destroy(harness.backend, condemned)

        assert {running, condemned} <= before
        after = [one async for one in harness.backend.owned() if one.agent_id in (running, ended, condemned)]
        assert [one.agent_id for one in after] == [running]
        assert after[0].created_at is not None
        assert after[0].created_at.tzinfo is not None
