"""A socket, and an HTTP server on it that leaves the process's signals and logs alone."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from hatchway.errors import ConfigError
from hatchway.gateway.connections import Peers, connections_of, most_per_address
from hatchway.gateway.handshakes import handshakes_of

BACKLOG = 2048


class Server(uvicorn.Server):
    """Says when it answers, and leaves the signals to whoever runs it."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The original raises a caught signal again when it is done, which would end the process before its pool and
        # its client are closed.
        yield


def configured(
    app: FastAPI, drain_s: int, *, bounded: bool = True, tls: ssl.SSLContext | None = None, **options: Any
) -> uvicorn.Config:
    """How every server of ours runs `app`. `drain_s`: how long calls in flight may take once it is told to stop.

    `bounded`: how many connections one address may have; not for a server that sees a proxy's address only. `tls`: the
    server speaks it itself.
    """
    peers = Peers(most_per_address() if bounded else None)
    # An access line holds the whole URL, and with it whatever a confused client put there. `access_log` alone leaves
    # the lines to any handler that somebody else has attached.
    logging.getLogger("uvicorn.access").disabled = True
    return uvicorn.Config(
        app,
        http=connections_of(peers) if tls is None else handshakes_of(peers, tls),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_s,
        lifespan="on",
        ws="none",
        **options,
    )


def bind(host: str, port: int, whose: str) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError for an address that cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as e:
        raise ConfigError(f"{whose} cannot use the address {host}:{port}: {e.strerror or e}") from e
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise ConfigError(f"{whose} cannot listen on {host}:{port}: {e.strerror}; is another one running?") from e
    listener.setblocking(False)
    return listener
