"""A limit on each call to Postgres: a caller hears 503 in seconds, whatever state the network is in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from hatchway.errors import StoreUnreachable

T = TypeVar("T")


class Patience:
    """Awaits calls to the store, for so long each. Raises StoreUnreachable when the time is over.

    The call itself is cancelled and left behind: the driver first asks the server to stop, and on a network that
    swallows packets it waits ten seconds for that alone.
    """

    def __init__(self, limit: timedelta) -> None:
        self._seconds = limit.total_seconds()
        self._left_behind: set[asyncio.Task[Any]] = set()

    async def __call__(self, call: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(call)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._seconds)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if not done:
            self._leave(task)
            raise StoreUnreachable(f"Postgres did not answer within {self._seconds:g} s")
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it any more; read, so that the loop does not complain
