"""TLS of the gateway's own: connections that have not shaken hands yet, and how long they may take.

asyncio's server speaks to nobody about a connection before its handshake is done, and lets that take a minute. So the
server listens without TLS and each connection starts it by itself: then it is counted, and can be ended, from its
first moment on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from uvicorn.protocols.utils import get_remote_addr

from hatchway.errors import ConfigError
from hatchway.gateway import connections
from hatchway.gateway.connections import Connection, Peers, connections_of
from hatchway.gateway.ratelimit import of_one_client

log = structlog.get_logger(__name__)


def tls_of(cert: Path, key: Path) -> ssl.SSLContext:
    """What a server shows with these PEM files. Raises ConfigError for files that do not serve."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} cannot be used together: {e.strerror or e}; the first needs the "
            "certificate chain, the second its private key, both as PEM"
        ) from None
    return context


class Handshake(asyncio.Protocol):
    """One connection, until its handshake is done. Then a `Connection` takes its place."""

    peers: Peers
    context: ssl.SSLContext
    served_by: type[Connection]
    is_idle = True
    """Nothing has been asked on it: it goes first where there are too many."""

    def __init__(self, **of_server: Any) -> None:
        """`of_server`: what uvicorn gives to the protocol of a connection."""
        self.transport: asyncio.Transport
        self._serve: Callable[[], Connection] = partial(self.served_by, **of_server)
        self._early: list[bytes] = []
        """A client may send its first request in one segment with the end of its handshake."""
        self._shaking: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a server's socket has
        transport.pause_reading()  # what comes before TLS is ready for it would be lost
        self.transport = transport
        client = get_remote_addr(transport)
        address = of_one_client(client[0]) if client else ""
        self.peers.add(self, address)
        self._shaking = asyncio.get_running_loop().create_task(self._shake(address))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    async def _shake(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        tls = None
        try:
            if not self.transport.is_closing():
                tls = await loop.start_tls(
                    self.transport, self, self.context, server_side=True,
                    ssl_handshake_timeout=connections.HANDSHAKE_S,
                )  # fmt: skip
        except OSError as e:  # too late, gone, or not TLS: the peer's affair, and it can have it as often as it likes
            log.debug("tls_handshake_failed", address=address, error=str(e) or type(e).__name__)
        finally:
            # Its successor counts itself before anything else can come in between.
            self.peers.remove(self, address)
            if tls is None:
                self.transport.abort()
        if tls is None or tls.is_closing():
            return
        connection = self._serve()
        tls.set_protocol(connection)
        connection.connection_made(tls)
        if self._early:
            connection.data_received(b"".join(self._early))


def handshakes_of(peers: Peers, context: ssl.SSLContext) -> type[Handshake]:
    """The protocol of one server that speaks TLS."""

    class Bounded(Handshake):
        pass

    Bounded.peers, Bounded.context, Bounded.served_by = peers, context, connections_of(peers)
    return Bounded
