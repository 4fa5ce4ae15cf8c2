"""The host watch: every end reaches its listener, whatever fails on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

from hatchway.backends.base import Backend
from hatchway.host.watch import HostWatch
from hatchway.model import ComputeExit

Exits = Callable[[int], AsyncIterator[ComputeExit]]


class StubBackend:
    """A backend of which only `exits` matters: `follow` is called with the number of the attempt."""

    def __init__(self, follow: Exits, host_id: str = "h") -> None:
        self.host_id = host_id
        self.follow = follow
        self.attempts = 0

    def exits(self) -> AsyncIterator[ComputeExit]:
        self.attempts += 1
        return self.follow(self.attempts)


class Listener:
    """Collects ends; refuses the first `refusals` of them."""

    def __init__(self, wanted: int, refusals: int = 0) -> None:
        self.heard: list[str] = []
        self.refusals = refusals
        self.wanted = wanted
        self.done = asyncio.Event()

    async def __call__(self, ended: ComputeExit) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("not now")
        self.heard.append(ended.agent_id)
        if len(self.heard) >= self.wanted:
            self.done.set()


def exits_of(*agent_ids: str) -> Exits:
    async def follow(_attempt: int) -> AsyncIterator[ComputeExit]:
        for agent_id in agent_ids:
            yield ComputeExit(agent_id=agent_id)
        await asyncio.Event().wait()

    return follow


async def failing_at_first(attempt: int) -> AsyncIterator[ComputeExit]:
    yield ComputeExit(agent_id=f"attempt-{attempt}")
    if attempt < 3:
        raise OSError("engine went away")
    await asyncio.Event().wait()


async def ending_at_first(attempt: int) -> AsyncIterator[ComputeExit]:
    yield ComputeExit(agent_id=f"attempt-{attempt}")
    if attempt >= 3:
        await asyncio.Event().wait()


async def hanging(_attempt: int) -> AsyncIterator[ComputeExit]:
    await asyncio.Event().wait()
    yield ComputeExit(agent_id="never")


@contextlib.asynccontextmanager
async def watching(
    on_exit: Callable[[ComputeExit], Awaitable[None]], *backends: StubBackend
) -> AsyncIterator[asyncio.Task[None]]:
    watch = HostWatch(cast("list[Backend]", list(backends)), on_exit, first_pause=0.001, longest_pause=0.01)
    task = asyncio.create_task(watch.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled(), "the watch does not end with its cancellation"


async def test_every_end_of_every_backend_is_told() -> None:
    listener = Listener(wanted=3)

    async with watching(listener, StubBackend(exits_of("a", "b")), StubBackend(exits_of("c"))):
        await asyncio.wait_for(listener.done.wait(), 5)

    assert sorted(listener.heard) == ["a", "b", "c"]


async def test_an_end_that_is_not_accepted_is_told_again() -> None:
    listener = Listener(wanted=1, refusals=5)

    async with watching(listener, StubBackend(exits_of("a"))):
        await asyncio.wait_for(listener.done.wait(), 5)

    assert listener.heard == ["a"]


async def test_a_backend_that_fails_is_followed_anew() -> None:
    for follow in (failing_at_first, ending_at_first):
        listener = Listener(wanted=3)

        async with watching(listener, StubBackend(follow)):
            await asyncio.wait_for(listener.done.wait(), 5)

        assert listener.heard == ["attempt-1", "attempt-2", "attempt-3"]


async def test_a_backend_that_hangs_holds_up_no_other() -> None:
    listener = Listener(wanted=2)

    async with watching(listener, StubBackend(hanging), StubBackend(exits_of("a", "b"))):
        await asyncio.wait_for(listener.done.wait(), 5)

    assert listener.heard == ["a", "b"]


async def test_an_end_whose_listener_hangs_holds_up_no_other_end() -> None:
    heard = asyncio.Event()

    async def on_exit(ended: ComputeExit) -> None:
        if ended.agent_id == "stuck":
            await asyncio.Event().wait()
        heard.set()

    async with watching(on_exit, StubBackend(exits_of("stuck", "next"))):
        await asyncio.wait_for(heard.wait(), 5)


async def test_an_end_told_twice_by_its_backend_is_delivered_once_at_a_time() -> None:
    delivering, most = 0, 0
    finish, second_round = asyncio.Event(), asyncio.Event()

    async def follow(attempt: int) -> AsyncIterator[ComputeExit]:
        yield ComputeExit(agent_id="a")
        if attempt == 1:
            raise OSError("and again from the start")
        second_round.set()
        await asyncio.Event().wait()

    async def on_exit(_ended: ComputeExit) -> None:
        nonlocal delivering, most
        delivering += 1
        most = max(most, delivering)
        await finish.wait()
        delivering -= 1

    async with watching(on_exit, StubBackend(follow)):
        await asyncio.wait_for(second_round.wait(), 5)
        finish.set()

    assert most == 1
