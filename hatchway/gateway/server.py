"""The gateway as a process: its pool, its socket and its server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import structlog
import uvicorn
from fastapi import FastAPI
from temporalio.client import Client

from hatchway.errors import HatchwayError
from hatchway.gateway.app import create_app
from hatchway.gateway.belonging import Belonging
from hatchway.gateway.handshakes import tls_of
from hatchway.gateway.listening import Server, bind, configured
from hatchway.gateway.settings import GatewaySettings
from hatchway.store.migrate import check_revision
from hatchway.store.pool import Database

DRAIN_S = 10
"""How long calls in flight may take after the gateway was told to stop; twice what one call waits for a server."""

log = structlog.get_logger(__name__)


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
    secrets or an address that cannot be bound, StoreUnreachable without Postgres, SchemaOutdated for an old schema,
    TiedElsewhere for the database of another namespace.
    """
    settings.check()
    listener = bind(settings.host, settings.port, "the gateway")
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
            belonging = Belonging(db, temporal_client, settings.answer_timeout)
            await belonging.refuse_elsewhere()
            server = Server(_configure(settings, create_app(settings, db, temporal_client, belonging)), announce)
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


def _configure(settings: GatewaySettings, app: FastAPI) -> uvicorn.Config:
    return configured(
        app,
        DRAIN_S,
        bounded=not settings.behind_tls_proxy,
        proxy_headers=settings.behind_tls_proxy,
        forwarded_allow_ips=settings.trusted_proxies,
        tls=tls_of(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None,
    )
