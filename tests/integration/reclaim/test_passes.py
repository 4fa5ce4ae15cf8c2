"""What nobody answers for is gone after two passes; what has a row is touched by none, whatever a listing says."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from hatchway.errors import ErrorType, HatchwayError
from hatchway.model import EndReason, ProvisionState
from tests.integration.reclaim.rig import HOST, Home
from tests.support.namespaces import until
from tests.support.scripted import Gate, straight_on

S = ProvisionState


def an_agent_id() -> str:
    return f"scaler-{uuid.uuid4().hex}"


async def _unreachable(_agent_id: str) -> None:
    raise HatchwayError("the engine does not answer")


async def test_creates_whose_reply_was_lost_and_whose_workflow_was_terminated_are_gone_after_two_passes(
    home: Home,
) -> None:
    home.backend.after_create = Gate()  # the reply never comes
    started = [await home.lab.provision(job_id=f"job-{n}") for n in range(4)]
    await until(lambda: len(home.cloud.live) == len(started), what="four creates under way")
    for one in started:
        await home.lab.reaches(one, S.SPAWNING)
        await home.lab.handle(one).terminate("by an operator, in the UI")
        await home.lab.slots.release(one.agent_id, EndReason.OPERATOR.value)  # forgotten, while its create is under way
    await home.lab.stop_host(HOST)  # the attempts hear of it now, not some time later, and take away what they see
    for one in started:
        home.cloud.create_for(home.lab.installation, one.agent_id)
    home.backend.after_create = straight_on
    home.lab.start_host(home.backend)

    first = await home.reclaim()
    standing = set(home.cloud.live)
    second = await home.reclaim()
    third = await home.reclaim()

    assert sorted(s.agent_id for s in first.sighted) == sorted(one.agent_id for one in started)
    assert standing == {one.agent_id for one in started}
    assert sorted(second.reclaimed) == sorted(standing)
    assert (second.sighted, second.failed) == ([], {})
    assert home.cloud.live == {}
    assert (third.seen, third.sighted, third.reclaimed) == (0, [], [])


async def test_what_was_not_seen_in_between_has_been_seen_once(home: Home) -> None:
    agent_id = an_agent_id()
    await home.orphan(agent_id)

    await home.reclaim()
    home.backend.hides.add(agent_id)
    await home.reclaim()
    home.backend.hides.clear()
    again = await home.reclaim()
    standing = set(home.cloud.live)
    last = await home.reclaim()

    assert again.reclaimed == []
    assert standing == {agent_id}
    assert last.reclaimed == [agent_id]


LIES: dict[str, Callable[[Home, list[str]], object]] = {
    "lists everything three times": lambda home, _: setattr(home.backend, "repeats", 3),
    "makes up what is not there": lambda home, _: home.backend.makes_up.extend([an_agent_id(), an_agent_id()]),
    "makes up what cannot be": lambda home, _: home.backend.makes_up.extend(["", '" OR RunId != "', "x" * 300]),
    "leaves out those at work": lambda home, busy: home.backend.hides.update(busy),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_no_lie_of_a_listing_ends_what_has_a_row(home: Home, lie: Callable[[Home, list[str]], object]) -> None:
    busy = [(await home.at_work(job_id=f"job-{n}")).agent_id for n in range(3)]
    orphan = an_agent_id()
    await home.orphan(orphan)
    lie(home, busy)

    outcomes = [await home.reclaim() for _ in range(3)]

    assert set(home.cloud.live) == set(busy)
    assert set(busy).isdisjoint(home.cloud.asked_for())
    assert orphan in outcomes[1].reclaimed
    assert [outcome.failed for outcome in outcomes] == [{}, {}, {}]


async def test_a_busy_agent_whose_workflow_was_terminated_is_not_reclaimed_while_it_has_its_row(home: Home) -> None:
    """Whether it is to go is for the reaper to judge, which knows when the agent was last heard of."""
    started = await home.at_work(job_id="job-1")
    await home.lab.handle(started).terminate("by an operator")

    outcomes = [await home.reclaim() for _ in range(3)]

    assert [(outcome.seen, outcome.sighted, outcome.reclaimed) for outcome in outcomes] == [(1, [], [])] * 3
    assert set(home.cloud.live) == {started.agent_id}


@pytest.mark.parametrize("at", ["before_list", "after_listed"])
async def test_a_listing_that_fails_ends_nothing_and_forgets_nothing(home: Home, at: str) -> None:
    """It may fail at once, or break off when it has listed a part."""
    busy = (await home.at_work(job_id="job-1")).agent_id
    orphan = an_agent_id()
    await home.orphan(orphan)
    await home.reclaim()

    setattr(home.backend, at, _unreachable)
    with pytest.raises(WorkflowFailureError) as failure:
        await home.reclaim()
    standing = set(home.cloud.live)
    setattr(home.backend, at, straight_on)
    after = await home.reclaim()

    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == ErrorType.RECLAIM_FAILED
    assert "the engine does not answer" in failure.value.cause.message
    assert standing == {busy, orphan}
    assert after.reclaimed == [orphan]
    assert set(home.cloud.live) == {busy}


async def test_an_agent_that_is_spawned_while_a_slow_listing_runs_is_left_alone(home: Home) -> None:
    gate = Gate()
    home.backend.before_list = gate
    passing = asyncio.create_task(home.reclaim())
    await gate.reached.wait()

    busy = (await home.at_work(job_id="job-1")).agent_id
    gate.open()
    first = await passing
    await home.reclaim()

    assert first.sighted == []
    assert set(home.cloud.live) == {busy}


async def test_what_cannot_be_destroyed_stays_sighted_and_is_tried_again(home: Home) -> None:
    stuck, other = an_agent_id(), an_agent_id()
    for agent_id in (stuck, other):
        await home.orphan(agent_id)

    async def only_the_other(agent_id: str) -> None:
        if agent_id == stuck:
            raise ValueError("it hangs in uninterruptible sleep")

    home.backend.before_destroy = only_the_other
    await home.reclaim()
    second = await home.reclaim()
    home.backend.before_destroy = straight_on
    third = await home.reclaim()

    assert second.reclaimed == [other]
    assert [sighting.agent_id for sighting in second.sighted] == [stuck]
    assert "uninterruptible" in second.failed[stuck]
    assert third.reclaimed == [stuck]
    assert home.cloud.live == {}


async def test_what_somebody_answers_for_by_then_is_spared(home: Home) -> None:
    """Its workflow was terminated, and is reset between the two passes: the agent is the same."""
    started = await home.at_work(job_id="job-1")
    await home.lab.handle(started).terminate("by mistake")
    await home.loses_rows(started.agent_id)

    first = await home.reclaim()
    again = await home.lab.reset(started)
    second = await home.reclaim()

    assert [sighting.agent_id for sighting in first.sighted] == [started.agent_id]
    assert second.reclaimed == []
    assert home.cloud.created(started.agent_id) == 1
    assert started.agent_id in home.cloud.live
    await home.lab.handle(again).cancel()
