"""Heartbeats of a step that takes long: that it is alive, and what it says it is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

FIRST_HEARTBEAT_AFTER = 10.0
HEARTBEAT_EVERY = 5.0
"""Seconds. Each heartbeat that reaches the server is an action: a quick spawn needs none, a slow one shows progress."""


@asynccontextmanager
async def heartbeats() -> AsyncIterator[Progress]:
    """Heartbeat while the body runs, with the latest progress as detail; a cancel reaches the body through them."""
    latest = Progress()

    async def beat() -> None:
        await asyncio.sleep(FIRST_HEARTBEAT_AFTER)
        while True:
            activity.heartbeat(latest.message)
            await asyncio.sleep(HEARTBEAT_EVERY)

    beating = asyncio.create_task(beat())
    try:
        yield latest
    finally:
        beating.cancel()


class Progress:
    """The last thing that the backend said it was doing."""

    def __init__(self) -> None:
        self.message = ""

    def __call__(self, message: str) -> None:
        self.message = message
