"""Instances that nobody answers for: destroyed by two passes in a row, and never one with a row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from hatchway.backends.ec2 import Ec2Backend, host_id
from hatchway.config.schema import Scaler
from hatchway.model import ProvisionState
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import installation_id, tie_namespace
from tests.contract.backend import fresh_agent_id, silent
from tests.integration.reclaim.rig import paused, reclaim
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.specs import QUICK, SCALER, ec2_scaler, ec2_spec
from tests.support.stack import Stack


@pytest.mark.scenario("S01", "S03")
async def test_an_instance_that_shows_after_its_teardown_is_reclaimed_and_a_busy_one_is_not(
    stack_of: Callable[..., AbstractAsyncContextManager[Stack]], cloud: FakeEc2
) -> None:
    lost, foreign = fresh_agent_id(), fresh_agent_id()
    async with stack_of("sleep", "600") as stack:
        installation = str(await installation_id(stack.db))
        await tie_namespace(stack.db, await namespace_uuid(stack.temporal))
        await paused(stack.temporal, host_id(SCALER))
        busy = await stack.provision(job_id="job-1")
        await stack.reaches(busy, ProvisionState.ACTIVE)
        for agent_id, whose in ((lost, installation), (foreign, "somebody-elses")):
            scaler = ec2_scaler(cloud.url, ec2={"userData": "exec sleep 3600"})
            backend = Ec2Backend(Scaler.model_validate(scaler), whose, QUICK)
            await backend.spawn(ec2_spec(scaler, agent_id, {"KICI_AGENT_ID": agent_id}, whose), silent)
            await backend.close()

        first = await reclaim(stack.temporal, host_id(SCALER))
        second = await reclaim(stack.temporal, host_id(SCALER))
        after = {name: len(cloud.live(agent_id)) for name, agent_id in
                 {"lost": lost, "foreign": foreign, "busy": busy.agent_id}.items()}  # fmt: skip
        await stack.hatchway.cancel(busy.workflow_id)
        await stack.nothing_left()

    assert ([one.agent_id for one in first.sighted], first.reclaimed) == ([lost], [])
    assert second.reclaimed == [lost]
    assert after == {"lost": 0, "foreign": 1, "busy": 1}
