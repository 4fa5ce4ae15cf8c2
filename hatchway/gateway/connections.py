"""Connections that ask for nothing: how long one may stay, and how many one address may have.

Whoever reaches a gateway could otherwise hold all of its file descriptors by opening connections and saying nothing,
and every agent of that gateway would fall silent. Any job can do that.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import defaultdict
from contextlib import suppress
from typing import Protocol

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from hatchway.gateway.ratelimit import of_one_client

HEADERS_S = 10.0
"""From the connection, or from the last answer on it, to the end of a request's headers. An agent's come at once."""
HANDSHAKE_S = 10.0
"""Of a gateway with TLS of its own, before that. A round trip or two; but a thousand agents that come back at once cost
some seconds of one core."""
SHARE = 4
"""One address may have this part of the descriptors, so no one address, and no two, fill the process."""
MOST_PER_ADDRESS = 4096
"""Where the descriptors are many: a thousand agents behind one address, each with a few calls under way."""
_SAY_EVERY_S = 60.0

log = structlog.get_logger(__name__)


def raise_open_files() -> None:
    """As many descriptors as the system grants this process: the usual soft limit of 1024 is for programs that use
    select(), which this one does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems name a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_per_address() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_PER_ADDRESS if soft == resource.RLIM_INFINITY else max(1, min(soft // SHARE, MOST_PER_ADDRESS))


class Counted(Protocol):
    """A connection, whatever it has come to."""

    transport: asyncio.Transport

    @property
    def is_idle(self) -> bool:
        """Whether it may be ended for another: it waits for its peer."""
        ...


class Peers:
    """The connections of one server, by the address that they come from."""

    def __init__(self, most: int | None) -> None:
        """`most` per address; None: no bound, since all come from a proxy."""
        self._most = most
        self._open: defaultdict[str, dict[Counted, None]] = defaultdict(dict)
        self._said_at = -_SAY_EVERY_S

    def add(self, connection: Counted, address: str) -> None:
        """Where that makes too many, the oldest goes that waits for a request, else the new one: an agent that shares
        its address with whoever holds them in silence still gets in."""
        there = self._open[address]
        there[connection] = None
        if self._most is None or len(there) <= self._most:
            return
        if time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._said_at = time.monotonic()
            log.warning("connections_of_one_address_bounded", address=address, most=self._most)
        idle = next((one for one in there if one.is_idle), connection)
        self.remove(idle, address)
        idle.transport.abort()

    def remove(self, connection: Counted, address: str) -> None:
        there = self._open.get(address, {})
        there.pop(connection, None)
        if not there:
            self._open.pop(address, None)


class Connection(H11Protocol):
    """uvicorn's, which by itself waits for a request for ever."""

    peers: Peers
    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """No request's headers are there that are not answered yet."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _address(self) -> str:
        return of_one_client(self.client[0]) if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        self.peers.add(self, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.peers.remove(self, self._address)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_headers()

    def _await_headers(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        if self.is_idle and not self.transport.is_closing():
            # Not closed in good order: that waits for a peer that does not read what it was sent.
            self.transport.abort()


def connections_of(peers: Peers) -> type[Connection]:
    """The protocol of one server."""

    class Bounded(Connection):
        pass

    Bounded.peers = peers
    return Bounded
