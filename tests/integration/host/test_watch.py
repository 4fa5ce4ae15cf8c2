"""The host watch over real processes: what ended is told, also if nobody watched when it did."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hatchway.backends.base import Backend
from hatchway.host.ending import EndedAgents
from hatchway.host.records import Records
from hatchway.host.watch import HostWatch
from hatchway.model import ComputeExit
from tests.contract.backend import EXIT_CODE, Behaviour, destroy, fresh_agent_id, live_becomes, silent, spec_for
from tests.contract.bare_metal import BareMetalHarness


@contextlib.asynccontextmanager
async def watching(backend: Backend, on_exit: Callable[[ComputeExit], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(HostWatch([backend], on_exit, first_pause=0.01).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=5)


async def told(queue: asyncio.Queue[ComputeExit]) -> ComputeExit:
    return await asyncio.wait_for(queue.get(), 20)


@pytest.mark.scenario("S24")
async def test_an_agent_that_is_killed_is_told_at_once(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    queue: asyncio.Queue[ComputeExit] = asyncio.Queue()
    await harness.backend.spawn(spec_for(harness, agent_id), silent)

    async with watching(harness.backend, queue.put):
        await harness.kill_from_outside(agent_id)
        begun = time.monotonic()
        ended = await told(queue)

    assert (ended.agent_id, ended.exit_code) == (agent_id, 137)
    assert time.monotonic() - begun < 5


async def test_ends_while_no_worker_ran_are_told_by_the_next_one_until_destroyed(harness: BareMetalHarness) -> None:
    agent_ids = {fresh_agent_id() for _ in range(5)}
    for agent_id in agent_ids:
        await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
    for agent_id in agent_ids:
        await live_becomes(harness, agent_id, 0)
    queue: asyncio.Queue[ComputeExit] = asyncio.Queue()

    async with watching(await harness.another(), queue.put):
        first = [await told(queue) for _ in agent_ids]
    for agent_id in agent_ids:
        await destroy(harness.backend, agent_id)
    later = fresh_agent_id()
    await harness.backend.spawn(spec_for(harness, later, Behaviour.EXITS), silent)
    async with watching(await harness.another(), queue.put):
        second = await told(queue)

    assert {ended.agent_id for ended in first} == agent_ids
    assert {ended.exit_code for ended in first} == {EXIT_CODE}
    assert second.agent_id == later, "a destroyed agent was told again"


async def test_a_listener_that_fails_hears_it_again(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    queue: asyncio.Queue[ComputeExit] = asyncio.Queue()
    failures = 3

    async def on_exit(ended: ComputeExit) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionError("no server answers")
        await queue.put(ended)

    await harness.backend.spawn(spec_for(harness, agent_id, Behaviour.EXITS), silent)
    async with watching(harness.backend, on_exit):
        ended = await told(queue)

    assert (ended.agent_id, failures) == (agent_id, 0)


@pytest.mark.scenario("S05")
async def test_the_watch_goes_on_after_its_state_directory_was_away(harness: BareMetalHarness) -> None:
    before, after = fresh_agent_id(), fresh_agent_id()
    queue: asyncio.Queue[ComputeExit] = asyncio.Queue()
    await harness.backend.spawn(spec_for(harness, before, Behaviour.EXITS), silent)

    async with watching(harness.backend, queue.put):
        assert (await told(queue)).agent_id == before
        async with harness.outage():
            await asyncio.sleep(0.5)  # longer than the watch takes to look twice
        await harness.backend.spawn(spec_for(harness, after, Behaviour.EXITS), silent)
        heard = {(await told(queue)).agent_id}
        while after not in heard:
            heard.add((await told(queue)).agent_id)

    assert heard <= {before, after}


async def test_a_watch_that_tells_only_what_it_sees_ending_loses_what_ended_before(
    harness: BareMetalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the record on disk is worth, when a worker starts after its agents have ended."""
    before, after = fresh_agent_id(), fresh_agent_id()
    await harness.backend.spawn(spec_for(harness, before, Behaviour.EXITS), silent)
    await live_becomes(harness, before, 0)
    begin, begun = EndedAgents.__init__, asyncio.Event()

    def forgetful(self: EndedAgents, records: Records, boot_id: str) -> None:
        begin(self, records, boot_id)
        self._told = set(records.agent_ids())
        begun.set()

    monkeypatch.setattr(EndedAgents, "__init__", forgetful)
    queue: asyncio.Queue[ComputeExit] = asyncio.Queue()
    async with watching(await harness.another(), queue.put):
        await asyncio.wait_for(begun.wait(), 20)
        await harness.backend.spawn(spec_for(harness, after, Behaviour.EXITS), silent)
        first = await told(queue)

    assert first.agent_id == after
    assert queue.empty()
