"""Connections to Postgres, and what its errors mean to a caller.

Works through a transaction pooler: no session state, no prepared statements, no startup options, one message a call.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, TypedDict

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from hatchway.errors import StoreContended, StoreUnreachable

GET_CONNECTION_S: Final = 5.0
"""How long a call waits for a connection before it says that Postgres is unreachable."""
CALL_S: Final = 12.0
"""The longest call: lock_timeout (5 s) twice, and the work. Beyond it the server or the network hangs."""
ADMISSION_QUEUE_S: Final = 30.0
ADMISSION_CONNECTIONS: Final = 2
"""One that holds the admission lock and one that waits for it: more would only take connections from others."""

# The classes and codes are those of the manual's appendix of error codes. What is in neither set is a mistake of ours
# or of whoever set the database up (a missing function, a privilege), and repeating it mends nothing.
CONTENDED: Final = ("40", "55P03", "57014", "72")
"""Rolled back for others' sake: conflicts, deadlocks, limits on a lock's or statement's time, old snapshots."""
UNREACHABLE: Final = ("08", "25006", "25P03", "25P04", "28", "40003", "53", "57", "58", "F0", "XX")
"""The server leaves, is read-only, lets nobody in, has no room or memory, or is broken: an operator's to mend, and then
the same call does. With 40003 nobody knows whether it was done."""


class _ConnectionOptions(TypedDict):
    connect_timeout: int
    keepalives_idle: int
    keepalives_interval: int
    keepalives_count: int
    tcp_user_timeout: int


# All of these stay on this side of the wire. tcp_user_timeout (ms): a network that swallows packets is noticed.
CONNECTION_OPTIONS: Final[_ConnectionOptions] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}

Parameters = Mapping[str, Any] | Sequence[Any] | None


def translated(error: BaseException) -> StoreContended | StoreUnreachable | None:
    """What a driver's error means to a caller, or None when it is a bug and must be seen as it is.

    The text is the server's own: it names hosts, users and constraints, and never a parameter of ours.
    """
    if isinstance(error, PoolTimeout):
        return StoreUnreachable(f"Postgres did not give a connection within {GET_CONNECTION_S:g} s")
    if isinstance(error, TimeoutError):
        return StoreUnreachable(f"Postgres did not answer within {CALL_S:g} s; calling again settles what happened")
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    if state is None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreUnreachable(f"the connection to Postgres failed: {_said(error)}")
        return None
    if state.startswith(CONTENDED) and state != "40003":
        return StoreContended(f"Postgres was busy ({state}): {_said(error)}")
    if state.startswith(UNREACHABLE):
        return StoreUnreachable(f"Postgres is not available ({state}): {_said(error)}")
    return None


def _said(error: BaseException) -> str:
    """On one line: libpq breaks its advice into several, and some loggers and readers take a line for the whole."""
    return " ".join(str(error).removeprefix("connection failed: ").split())


class Database:
    """A pool of connections. Every method is one statement in its own transaction; none outlives the call.

    Raises StoreContended when nothing happened and calling again will do, and StoreUnreachable when nobody knows
    whether it happened: every call of the store settles that when it is made again. Anything else is a bug.
    """

    def __init__(self, pool: AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]]) -> None:
        self._pool = pool
        self._admission = asyncio.Semaphore(ADMISSION_CONNECTIONS)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, *, min_size: int = 1, max_size: int = 10) -> AsyncIterator[Database]:
        """Connect, and close the pool on the way out. Raises StoreUnreachable, with the server's own reason."""
        try:
            # The pool would only say "timeout": a wrong password, say, must be readable at once.
            async with await psycopg.AsyncConnection.connect(dsn, **CONNECTION_OPTIONS):
                pass
        except psycopg.OperationalError as error:
            raise translated(error) or StoreUnreachable(f"Postgres refused the connection: {_said(error)}") from error
        pool: AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]] = AsyncConnectionPool(
            dsn,
            min_size=min_size,
            max_size=max_size,
            kwargs={"autocommit": True, "prepare_threshold": None, **CONNECTION_OPTIONS},
            timeout=GET_CONNECTION_S,
            # Give up soon: the next call tries anew at once, instead of waiting out a long backoff.
            reconnect_timeout=GET_CONNECTION_S,
            open=False,
        )
        await pool.open()
        try:
            yield cls(pool)
        finally:
            await pool.close()

    async def call(self, function: str, arguments: Mapping[str, Any], *, admission: bool = False) -> Any:
        """Run a function of the store in one message, READ COMMITTED whatever the server's default is.

        `arguments` and the answer are JSON. `admission` is for those that take the admission lock.
        """
        if not admission:
            return await self._call(function, arguments)
        try:
            await asyncio.wait_for(self._admission.acquire(), ADMISSION_QUEUE_S)
        except TimeoutError:
            raise StoreContended(
                f"{ADMISSION_QUEUE_S:g} s in this process's own queue for the admission lock; call again"
            ) from None
        try:
            return await self._call(function, arguments)
        finally:
            self._admission.release()

    async def _call(self, function: str, arguments: Mapping[str, Any]) -> Any:
        async with self._answering() as connection:
            # Raw: with the server's own placeholders there is no query to take apart at every call.
            cursor = psycopg.AsyncRawCursor(connection)
            await cursor.execute("call public.hatchway_call($1, $2, null)", (function, Jsonb(dict(arguments))))
            row = await cursor.fetchone()
            return row[0] if row else None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """A connection that the server has not closed while it lay in the pool.

        The pool has a check of its own, but waits seconds after each dead connection, and a restart leaves many.
        """
        connection = await self._pool.getconn()
        while not await _alive(connection):
            await self._pool.putconn(connection)
            connection = await self._pool.getconn()
        try:
            yield connection
        except psycopg.Error as error:
            if isinstance(translated(error), StoreUnreachable):
                # A session keeps what it began with: read-only, say, or a server that is the primary no longer. The
                # next call gets a new one, which asks for the way anew.
                await connection.close()
            raise
        finally:
            await self._pool.putconn(connection)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """A connection for one statement, which is bounded, and whose errors are the store's."""
        try:
            async with self._connection() as connection, asyncio.timeout(CALL_S):
                yield connection
        except (psycopg.Error, TimeoutError) as error:
            meaning = translated(error)
            if meaning is None:
                raise
            raise meaning from error

    async def fetch_all(self, query: LiteralString, parameters: Parameters = None) -> list[tuple[Any, ...]]:
        """Every row of one statement; none of a statement that answers no rows."""
        async with self._answering() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def fetch_one(self, query: LiteralString, parameters: Parameters = None) -> tuple[Any, ...] | None:
        """The first row of one statement, or None."""
        rows = await self.fetch_all(query, parameters)
        return rows[0] if rows else None

    async def fetch_value(self, query: LiteralString, parameters: Parameters = None) -> Any:
        """The first column of the first row, or None."""
        row = await self.fetch_one(query, parameters)
        return None if row is None else row[0]

    async def ping(self) -> None:
        """Return when Postgres has answered. Raises StoreUnreachable."""
        await self.fetch_value("select 1")


async def _alive(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Find out, without a message, whether the server has closed an idle connection; if so, it is closed here too.

    An idle connection has nothing to read, unless the other side ended it: first its last words, then the end, which
    makes `consume_input` raise. A few rounds, as a parameter's change may be reported on a healthy one.
    """
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    try:
        for _ in range(3):
            if not waiting.poll(0):
                break
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        await connection.close()  # its own status may still say that all is well
        return False
    return True
