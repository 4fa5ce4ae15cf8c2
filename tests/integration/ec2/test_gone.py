"""When an instance is gone: EC2 shows it terminated, or has shown nothing for longer than it shows anything late."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from hatchway.backends.base import Gone
from hatchway.backends.ec2 import Ec2Backend, Pace
from hatchway.config.schema import Scaler
from hatchway.errors import DestroyError
from hatchway.model import ComputeRef, ScaleDownReason, TeardownFacts
from tests.contract.backend import destroy, environment_for, facts_for, fresh_agent_id, silent, spec_for
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, Ec2Harness
from tests.support.fake_ec2.images import DATA_AMI
from tests.support.fake_ec2.specs import QUICK, ec2_scaler, ec2_spec
from tests.support.fake_ec2.wire import Parameters
from tests.support.namespaces import until

LATE_S = 0.4
HASTY = replace(QUICK, visible_after=0.0)
"""A backend that takes what it does not see for gone: the bug that the wait is there against."""
PATIENT = replace(QUICK, visible_after=10.0)
"""For what is seen in the end: a look may take as long as an instance takes to show."""


def backend_of(cloud: FakeEc2, pace: Pace = QUICK) -> Ec2Backend:
    return Ec2Backend(Scaler.model_validate(ec2_scaler(cloud.url)), INSTALLATION, pace)


def facts(ref: ComputeRef | None, host_id: str) -> TeardownFacts:
    return TeardownFacts(backend_type="ec2", host_id=host_id, compute=ref)


@pytest.mark.scenario("S01", "S04")
@pytest.mark.parametrize("confirmed", [True, False], ids=["with its id on the row", "with a stamp only"])
async def test_an_instance_that_shows_late_is_not_taken_for_gone(
    harness: Ec2Harness, cloud: FakeEc2, confirmed: bool
) -> None:
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (machine,) = cloud.of(agent_id)
    machine.shown_at = time.monotonic() + LATE_S
    machine.tagged_at = machine.shown_at + LATE_S

    other = backend_of(cloud, PATIENT)

    gone = await other.destroy(agent_id, facts(ref if confirmed else None, ref.host_id), ScaleDownReason.SHUTDOWN)
    await other.close()

    assert gone == Gone()
    assert machine.state == "terminated"


@pytest.mark.scenario("S01", "S04")
async def test_without_that_patience_a_late_instance_would_be_left_running(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:  # fmt: skip
    """What the test above holds to: with the mechanism taken out, it sees the leak."""
    agent_id = fresh_agent_id()
    await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (machine,) = cloud.of(agent_id)
    machine.shown_at = machine.tagged_at = time.monotonic() + 60
    hasty = backend_of(cloud, HASTY)

    gone = await hasty.destroy(agent_id, facts_for(hasty), ScaleDownReason.SHUTDOWN)
    await hasty.close()

    assert gone == Gone()
    assert machine.lives
    machine.shown_at = machine.tagged_at = 0.0  # so that the harness can remove it


async def test_a_slow_shutdown_is_awaited(harness: Ec2Harness, cloud: FakeEc2) -> None:
    agent_id = fresh_agent_id()
    cloud.mischief.shutdown_s = 1.5
    await harness.backend.spawn(spec_for(harness, agent_id), silent)
    begun = time.monotonic()

    await destroy(harness.backend, agent_id)

    assert time.monotonic() - begun >= 1.5
    assert cloud.of(agent_id)[0].state == "terminated"
    assert cloud.calls["TerminateInstances"] == 1


@pytest.mark.scenario("S04")
async def test_an_instance_that_ended_an_hour_ago_is_gone_by_proof_and_not_by_a_refusal(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:
    """EC2 asks for the permission first, which hangs on a tag: what is forgotten is answered as what is forbidden."""
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (machine,) = cloud.of(agent_id)
    cloud.end(machine)
    await until(lambda: machine.state == "terminated", what="the instance's end")
    cloud.forget(machine)

    gone = await (await harness.another()).destroy(agent_id, facts(ref, ref.host_id), ScaleDownReason.SHUTDOWN)

    assert gone == Gone()
    assert cloud.calls["TerminateInstances"] == 0


@pytest.mark.scenario("S04")
@pytest.mark.parametrize("when", ["before the teardown", "while it goes"])
async def test_an_instance_that_lost_its_tags_is_not_taken_for_gone(
    harness: Ec2Harness, cloud: FakeEc2, when: str
) -> None:
    """It cannot be found by them, nor ended by whoever may end only what bears them: EC2 shows it by its id."""
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (machine,) = cloud.of(agent_id)
    tags = machine.tags

    def strip(action: str, ask: Parameters, point: str) -> None:
        if action == "TerminateInstances" and point == "before":
            cloud.mischief.refuse("TerminateInstances", "InvalidInstanceID.NotFound")
            machine.tags = {}

    if when == "before the teardown":
        machine.tags = {}
    else:
        cloud.held = strip

    with pytest.raises(DestroyError, match=f"{ref.ref}.*tags"):
        await harness.backend.destroy(agent_id, facts(ref, ref.host_id), ScaleDownReason.SHUTDOWN)

    cloud.held = None
    assert machine.lives
    machine.tags = tags  # so that the harness can remove it


@pytest.mark.scenario("S04")
async def test_an_instance_that_ec2_has_forgotten_is_gone(harness: Ec2Harness, cloud: FakeEc2) -> None:
    """An hour after its end EC2 knows nothing of it, and says so for a whole batch."""
    agent_id = fresh_agent_id()
    ref = ComputeRef(
        backend="ec2", ref="i-0123456789abcdef0", host_id="scaler.aws", endpoint=f"eu-central-1 {cloud.url}"
    )

    gone = await harness.backend.destroy(agent_id, facts(ref, ref.host_id), ScaleDownReason.SHUTDOWN)

    assert gone == Gone()


@pytest.mark.scenario("S04")
@pytest.mark.parametrize("action", ["TerminateInstances", "DescribeInstances"])
@pytest.mark.parametrize(("code", "status"), [("InternalError", 500), ("UnauthorizedOperation", 403)])
@pytest.mark.parametrize("confirmed", [True, False], ids=["with its id on the row", "with a stamp only"])
async def test_while_ec2_refuses_nothing_is_confirmed(
    harness: Ec2Harness, cloud: FakeEc2, action: str, code: str, status: int, confirmed: bool
) -> None:
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    cloud.mischief.refuse(action, code, status=status, times=100)

    with pytest.raises(DestroyError, match="not confirmed gone"):
        await harness.backend.destroy(
            agent_id, facts(ref if confirmed else None, ref.host_id), ScaleDownReason.SHUTDOWN
        )

    assert await harness.live(agent_id) == 1
    cloud.mischief.refusals = []


async def test_a_teardown_ends_every_instance_that_bears_the_agents_id(harness: Ec2Harness, cloud: FakeEc2) -> None:
    """A launch that was under way when its worker died can still come to be, beside the next attempt's."""
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (machine,) = cloud.of(agent_id)
    cloud._made({**machine.asked, "ClientToken": "of-another-offer"}, "of-another-offer")

    await harness.backend.destroy(agent_id, facts(ref, ref.host_id), ScaleDownReason.SHUTDOWN)

    assert [one.state for one in cloud.of(agent_id)] == ["terminated", "terminated"]


@pytest.mark.parametrize("encrypted", [True, False])
async def test_no_volume_of_an_image_outlives_its_instance(
    harness: Ec2Harness, cloud: FakeEc2, encrypted: bool
) -> None:  # fmt: skip
    """An image says for each of its volumes whether it goes with the instance: one that stays would cost for ever."""
    agent_id = fresh_agent_id()
    ec2 = {"ami": DATA_AMI, "userData": "exec sleep 3600", "rootVolume": {"encrypted": encrypted}}
    spec = ec2_spec(ec2_scaler(cloud.url, ec2=ec2), agent_id, environment_for(agent_id), INSTALLATION)
    await harness.backend.spawn(spec, silent)

    await destroy(harness.backend, agent_id)

    (machine,) = cloud.of(agent_id)
    assert {one.device: one.encrypted for one in machine.volumes} == dict.fromkeys(
        ("/dev/xvda", "/dev/sdf", "/dev/sdg"), encrypted
    )
    assert cloud.volumes_left() == []


async def test_an_agent_whose_row_names_another_region_is_looked_for_there(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:  # fmt: skip
    agent_id = fresh_agent_id()
    ref = await harness.backend.spawn(spec_for(harness, agent_id), silent)
    moved = ec2_scaler("http://127.0.0.1:1")
    elsewhere = Ec2Backend(Scaler.model_validate(moved), INSTALLATION, QUICK)

    await elsewhere.destroy(agent_id, facts(ref, ref.host_id), ScaleDownReason.SHUTDOWN)
    await elsewhere.close()

    assert cloud.of(agent_id)[0].state == "terminated"


async def test_a_hundred_teardowns_look_together(harness: Ec2Harness, cloud: FakeEc2) -> None:
    agents = [fresh_agent_id() for _ in range(100)]
    cloud.boots = False
    await asyncio.gather(*(harness.backend.spawn(spec_for(harness, one), silent) for one in agents))
    before = cloud.calls["DescribeInstances"]
    patient = backend_of(cloud, replace(QUICK, look_every=1.0))

    await asyncio.gather(*(destroy(patient, one) for one in agents))
    await patient.close()

    assert cloud.there() == []
    assert cloud.calls["DescribeInstances"] - before <= 25


async def test_more_agents_than_one_call_may_name_are_looked_for_in_several(cloud: FakeEc2) -> None:
    """EC2 takes 200 values in a call, of all of its filters together."""
    hasty = backend_of(cloud, HASTY)

    found = await asyncio.gather(*(hasty.find(fresh_agent_id()) for _ in range(400)))
    await hasty.close()

    assert found == [None] * 400
    assert cloud.calls["DescribeInstances"] == 3


@pytest.mark.parametrize("empty_pages", [False, True])
async def test_owned_reads_every_page(harness: Ec2Harness, cloud: FakeEc2, empty_pages: bool) -> None:
    agents = {fresh_agent_id() for _ in range(7)}
    cloud.boots = False
    for agent_id in agents:
        await harness.backend.spawn(spec_for(harness, agent_id), silent)
    cloud.mischief.page, cloud.mischief.empty_pages = 3, empty_pages

    owned = {one.agent_id async for one in harness.backend.owned()}

    cloud.mischief.page, cloud.mischief.empty_pages = 1000, False
    assert owned == agents


async def test_a_list_that_breaks_off_is_no_list(harness: Ec2Harness, cloud: FakeEc2) -> None:
    cloud.boots = False
    for _ in range(4):
        await harness.backend.spawn(spec_for(harness, fresh_agent_id()), silent)
    cloud.mischief.page = 2
    cloud.mischief.refuse("DescribeInstances", "InvalidParameterValue", fits=lambda ask: "NextToken" in ask)

    with pytest.raises(Exception, match="InvalidParameterValue"):
        _ = [one async for one in harness.backend.owned()]

    cloud.mischief.page = 1000
