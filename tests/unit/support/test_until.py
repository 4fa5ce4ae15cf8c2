"""Waiting for what must become true says what it was, and how long it was given."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.namespaces import until


async def test_what_never_came_true_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s for a moon of cheese"):
        await until(lambda: False, 0.05, what="a moon of cheese")


async def test_a_look_that_hangs_is_given_up_as_well() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0\.05 s"):
        await until(asyncio.Event().wait, 0.05)


async def test_a_look_that_times_out_itself_is_not_taken_for_the_end_of_patience() -> None:
    async def look() -> bool:
        raise TimeoutError("the server did not answer")

    with pytest.raises(TimeoutError, match="the server did not answer"):
        await until(look)
