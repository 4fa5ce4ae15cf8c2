"""A limit on each call to Postgres: a caller hears 503 in seconds, whatever state the network is in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar

from hatchway.errors import StoreUnreachable

T = TypeVar("T")


class Patience:
    """Awaits calls to the store, for so long each. Raises StoreUnreachable when the time is over."""

    def __init__(self, limit: timedelta) -> None:
        self._seconds = limit.total_seconds()

    async def __call__(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await call
        except TimeoutError as e:
            raise StoreUnreachable(f"Postgres did not answer within {self._seconds:g} s") from e
