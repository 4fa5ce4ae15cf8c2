"""Turns what the domain raises into what Temporal understands: a type to branch on, and whether to try again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from hatchway.errors import ErrorType, StoreContended, StoreUnreachable
from hatchway.metrics import Metrics

T = TypeVar("T")

ASK_AGAIN_AFTER = 1.0  # seconds


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of a store call, however long the database is away; the activity's own limits bound the wait.

    For a spawn: an outage of the database is no failure of the backend, and must not use up its few attempts.
    """
    while True:
        try:
            return await call()
        except (StoreUnreachable, StoreContended) as e:
            activity.logger.warning("waiting for the database: %s", e)
            await asyncio.sleep(ASK_AGAIN_AFTER)


async def within(limit: timedelta | None, call: Awaitable[T]) -> T:
    """The answer of a store call. Raises StoreUnreachable where it takes longer than `limit`; None: the store's own."""
    try:
        async with asyncio.timeout(limit.total_seconds() if limit else None):
            return await call
    except TimeoutError:
        if limit is None:
            raise
        raise StoreUnreachable(
            f"Postgres did not answer within {limit.total_seconds():g} s; calling again settles what happened"
        ) from None


@contextmanager
def store_errors(metrics: Metrics, *, fatal: bool = False) -> Iterator[None]:
    """ApplicationErrors for a database that is away or contended. Never mistaken for an answer.

    Retryable, unless `fatal`: whoever called has another way to go on, and does not want to wait for this one.
    """
    try:
        yield
    except StoreUnreachable as e:
        metrics.cap_lock_failed("unreachable")
        raise ApplicationError(str(e), type=ErrorType.STORE_UNREACHABLE, non_retryable=fatal) from None
    except StoreContended as e:
        metrics.cap_lock_failed("contended")
        raise ApplicationError(
            str(e),
            type=ErrorType.CAP_LOCK_CONTENDED,
            non_retryable=fatal,
            category=ApplicationErrorCategory.BENIGN,
        ) from None
