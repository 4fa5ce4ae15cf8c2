from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from hatchway.errors import StoreUnreachable
from hatchway.gateway.patience import Patience


async def test_an_answer_in_time_is_passed_on() -> None:
    async def answer() -> int:
        return 7

    assert await Patience(timedelta(seconds=5))(answer()) == 7


async def test_a_failure_in_time_is_passed_on() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await Patience(timedelta(seconds=5))(fail())


async def test_a_call_that_cannot_be_cancelled_at_once_is_left_behind() -> None:
    """A driver that is cancelled on a dead network first tries to tell the server, for seconds."""
    let_go, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await let_go.wait()
        ended.set()
        raise ConnectionError("said to nobody")

    async with asyncio.timeout(5):
        with pytest.raises(StoreUnreachable, match=r"did not answer within 0\.05 s"):
            await Patience(timedelta(seconds=0.05))(stubborn())
        assert not ended.is_set()
        let_go.set()
        await ended.wait()
