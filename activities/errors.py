"""Turns what the domain raises into what Temporal understands: a type to branch on, and whether to try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from hatchway.errors import ErrorType, StoreContended, StoreUnreachable


@contextmanager
def store_errors() -> Iterator[None]:
    """Retryable ApplicationErrors for a database that is away or contended. Never mistaken for an answer."""
    try:
        yield
    except StoreUnreachable as e:
        raise ApplicationError(str(e), type=ErrorType.STORE_UNREACHABLE) from None
    except StoreContended as e:
        raise ApplicationError(
            str(e), type=ErrorType.CAP_LOCK_CONTENDED, category=ApplicationErrorCategory.BENIGN
        ) from None
