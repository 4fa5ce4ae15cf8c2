"""Ends of instances: seen by one look at all of them, told once, never for an instance that may still be running."""

from __future__ import annotations

import asyncio

import pytest

from hatchway.backends import ec2_exits
from hatchway.backends.ec2 import Ec2Backend
from hatchway.model import ComputeExit
from tests.contract.backend import Behaviour, destroy, exit_of, fresh_agent_id, live_becomes, silent, spec_for
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import Ec2Harness
from tests.support.fake_ec2.specs import QUICK
from tests.support.namespaces import until


async def told(backend: Ec2Backend, looks: int, cloud: FakeEc2) -> list[ComputeExit]:
    """What one watch tells within so many looks."""
    heard: list[ComputeExit] = []

    async def listen() -> None:
        async for ended in backend.exits():
            heard.append(ended)

    before = cloud.calls["DescribeInstances"]
    listening = asyncio.create_task(listen())
    await until(lambda: cloud.calls["DescribeInstances"] >= before + looks, what=f"{looks} looks")
    listening.cancel()
    await asyncio.wait([listening])
    return heard


@pytest.mark.parametrize("instances", [1, 40])
async def test_a_look_is_one_call_however_many_instances_there_are(
    harness: Ec2Harness, cloud: FakeEc2, instances: int
) -> None:
    cloud.boots = False
    for _ in range(instances):
        await harness.backend.spawn(spec_for(harness, fresh_agent_id()), silent)
    cloud.calls.clear()

    await asyncio.wait_for(told(harness.backend, 5, cloud), 5 * QUICK.poll * 20)

    assert set(cloud.calls) == {"DescribeInstances"}
    assert cloud.calls["DescribeInstances"] <= 6


async def test_a_look_goes_through_all_pages(harness: Ec2Harness, cloud: FakeEc2) -> None:
    cloud.boots = False
    agents = [fresh_agent_id() for _ in range(5)]
    for agent_id in agents:
        await harness.backend.spawn(spec_for(harness, agent_id), silent)
    for agent_id in agents:
        cloud.end(cloud.of(agent_id)[0], "Server.SpotInstanceTermination")
    cloud.mischief.page, cloud.mischief.empty_pages = 2, True

    heard = await told(harness.backend, 12, cloud)

    cloud.mischief.page, cloud.mischief.empty_pages = 1000, False
    assert sorted(ended.agent_id for ended in heard) == sorted(agents)
    assert all("Server.SpotInstanceTermination" in ended.log_tail for ended in heard)


async def test_what_this_worker_ended_itself_is_no_news(harness: Ec2Harness, cloud: FakeEc2) -> None:
    ours, theirs = fresh_agent_id(), fresh_agent_id()
    for agent_id in (ours, theirs):
        await harness.backend.spawn(spec_for(harness, agent_id), silent)
    cloud.end(cloud.of(theirs)[0])
    await destroy(harness.backend, ours)

    heard = await told(harness.backend, 3, cloud)

    assert [ended.agent_id for ended in heard] == [theirs]


async def test_an_agent_with_one_instance_that_runs_has_not_ended(harness: Ec2Harness, cloud: FakeEc2) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(spec_for(harness, agent_id), silent)
    (first,) = cloud.of(agent_id)
    cloud._made({**first.asked, "ClientToken": "of-another-offer"}, "of-another-offer")
    cloud.end(first)

    heard = await told(harness.backend, 3, cloud)

    assert heard == []


async def test_a_worker_that_comes_late_asks_for_a_few_consoles_only(
    harness: Ec2Harness, cloud: FakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ec2_exits, "CONSOLES_A_LOOK", 2)
    agents = [fresh_agent_id() for _ in range(5)]
    for agent_id in agents:
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
    for agent_id in agents:
        await live_becomes(harness, agent_id, 0)

    heard = await told(harness.backend, 2, cloud)

    assert sorted(ended.agent_id for ended in heard) == sorted(agents)
    assert cloud.calls["GetConsoleOutput"] == 2
    assert sum(ended.exit_code is not None for ended in heard) == 2


@pytest.mark.parametrize(
    "code", ["UnauthorizedOperation", "InvalidInstanceID.NotFound", "UnsupportedOperation"]
)  # fmt: skip
async def test_an_end_is_told_also_where_the_console_cannot_be_read(
    harness: Ec2Harness, cloud: FakeEc2, code: str
) -> None:
    agent_id = fresh_agent_id()
    cloud.mischief.refuse("GetConsoleOutput", code, times=9)
    await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)

    ended = await exit_of(harness.backend, agent_id)

    assert (ended.exit_code, ended.log_tail) == (None, "")


async def test_an_instance_without_a_live_console_is_asked_for_its_last_one(
    harness: Ec2Harness, cloud: FakeEc2
) -> None:  # fmt: skip
    agent_id = fresh_agent_id()
    cloud.mischief.refuse("GetConsoleOutput", "UnsupportedOperation", times=9, fits=lambda ask: "Latest" in ask)
    await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)

    ended = await exit_of(harness.backend, agent_id)

    assert ended.log_tail.endswith("the last line")
