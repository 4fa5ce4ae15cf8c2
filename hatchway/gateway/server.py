"""The gateway as a process: its pool, its socket and its server."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import structlog
import uvicorn
from temporalio.client import Client

from hatchway.errors import ConfigError, HatchwayError
from hatchway.gateway.app import create_app
from hatchway.gateway.settings import GatewaySettings
from hatchway.store.migrate import check_revision
from hatchway.store.pool import Database

DRAIN_S = 10
"""How long calls in flight may take after the gateway was told to stop; twice what one call waits for a server."""
BACKLOG = 2048

log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    """Says when it answers, and leaves the signals to `serve`."""

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


async def serve(
    settings: GatewaySettings,
    dsn: str,
    temporal_client: Client,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until `stop` is set; with `stop`, signals are the caller's to handle.

    `started` is called with the gateway's URL once it answers. Raises ConfigError for settings that would expose
    secrets or an address that cannot be bound, StoreUnreachable without Postgres, SchemaOutdated for an old schema.
    """
    settings.check()
    listener = _bind(settings)
    scheme = "https" if settings.tls_cert else "http"
    host, port = listener.getsockname()[:2]
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def announce() -> None:
        log.info("gateway_started", url=url, instance_id=settings.instance)
        if started is not None:
            started(url)

    try:
        async with Database.open(dsn) as db:
            await check_revision(db)
            server = _Server(_configure(settings, db, temporal_client), announce)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            with _stopped_by_signals(server) if stop is None else nullcontext(stop) as stopped:
                stopping = asyncio.create_task(stopped.wait())
                try:
                    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # Also when this coroutine is cancelled: calls in flight are answered before the pool goes away.
                    server.should_exit = True
                    stopping.cancel()
                    await serving
            if not server.started:
                raise HatchwayError("the gateway could not start; its log says why")
    finally:
        listener.close()
    log.info("gateway_stopped", instance_id=settings.instance)


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets. A second one waits for no call in flight."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def caught() -> None:
        server.force_exit = stop.is_set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _configure(settings: GatewaySettings, db: Database, temporal_client: Client) -> uvicorn.Config:
    # An access line holds the whole URL, and with it whatever a confused client put there. `access_log` alone leaves
    # the lines to any handler that somebody else has attached.
    logging.getLogger("uvicorn.access").disabled = True
    return uvicorn.Config(
        create_app(settings, db, temporal_client),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.behind_tls_proxy,
        forwarded_allow_ips=settings.trusted_proxies,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=DRAIN_S,
        lifespan="on",
        ws="none",
    )


def _bind(settings: GatewaySettings) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as e:
        raise ConfigError(f"the gateway cannot use the address {settings.bind}: {e.strerror or e}") from e
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise ConfigError(f"the gateway cannot listen on {settings.bind}: {e.strerror}; is another one running?") from e
    listener.setblocking(False)
    return listener
