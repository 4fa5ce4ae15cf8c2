"""For steps with an effect elsewhere: a call in a thread or on the wire cannot be taken back by a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(step: Awaitable[T]) -> T:
    """The step's answer. A cancel waits for its end, however often it comes, and only then goes through.

    So whoever waits for the cancelled task knows that nothing of this step is still under way. What the step answered,
    or failed with, is dropped then.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as e:
            cancelled = e
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # read, or the loop would log it as one that nobody has seen
    raise cancelled
