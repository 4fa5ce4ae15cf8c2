"""Connections to the two servers that commands talk to, with the answer that people need when one is not there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hatchway.cli.failures import failed, unreachable, usage

if TYPE_CHECKING:
    from hatchway.client import HatchwayClient
    from hatchway.store.pool import Database

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine. Ctrl-C cancels it, so that it cleans up, and raises KeyboardInterrupt."""
    return asyncio.run(work)


def database_url() -> str:
    """DATABASE_URL. Raises Failure (usage) without one."""
    url = os.environ.get("DATABASE_URL", "").strip()
    if not url:
        raise usage(
            "DATABASE_URL is not set: it is the address of Hatchway's Postgres, postgresql://USER:PASSWORD@HOST/DB"
        )
    return url


@contextmanager
def database_errors() -> Iterator[None]:
    """Turn a DATABASE_URL that the driver cannot read into a sentence without it: the driver quotes the password."""
    try:
        yield
    except Exception as e:
        if type(e).__module__.startswith("psycopg") and type(e).__name__ == "ProgrammingError":
            raise usage(
                "DATABASE_URL is not a Postgres address: it has the form postgresql://USER:PASSWORD@HOST:PORT/DB, "
                "with special characters in the password percent-encoded"
            ) from None
        raise


@asynccontextmanager
async def database() -> AsyncIterator[Database]:
    """Hatchway's Postgres, at the revision that this code needs. Raises StoreUnreachable, SchemaOutdated, Failure."""
    from hatchway.store.migrate import check_revision
    from hatchway.store.pool import Database

    # What the pool warns of, a command says in a sentence of its own.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    with database_errors():
        async with Database.open(database_url(), max_size=4) as db:
            await check_revision(db)
            yield db


@asynccontextmanager
async def hatchway_client() -> AsyncIterator[HatchwayClient]:
    """A client from Temporal's own environment and profiles. Raises Failure when the server does not answer."""
    from hatchway.client import HatchwayClient

    with temporal_errors():
        yield HatchwayClient(await temporal())


async def temporal(**overrides: Any) -> Any:
    """A connected `temporalio.client.Client`. Raises Failure."""
    from hatchway.client import connect

    with temporal_errors():
        return await connect(**overrides)


@contextmanager
def temporal_errors() -> Iterator[None]:
    """Turn what the Temporal SDK raises into sentences."""
    from temporalio.service import RPCError, RPCStatusCode

    from hatchway.client import TemporalUnreachable

    away = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}
    try:
        yield
    except TemporalUnreachable as e:
        raise unreachable(str(e)) from None
    except RPCError as e:
        if e.status in away:
            raise unreachable(f"Temporal does not answer: {e.message}") from e
        if e.status is RPCStatusCode.NOT_FOUND and e.message.startswith("Namespace "):
            raise failed(
                "no_namespace",
                f"Temporal says: {e.message} Set TEMPORAL_NAMESPACE to one that is there, or make it: `temporal "
                "operator namespace create --namespace NAME`, then `hatchway setup`",
            ) from e
        if e.status is RPCStatusCode.NOT_FOUND:
            raise failed("not_found", f"Temporal knows nothing of it: {e.message}") from e
        if e.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            raise failed("permission_denied", f"Temporal refuses these credentials: {e.message}") from e
        raise failed("temporal", f"Temporal refused the call ({e.status.name}): {e.message}") from e
