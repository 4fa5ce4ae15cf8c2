"""A port with nothing but health on it, for a process that is no gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from hatchway.errors import ConfigError, HatchwayError
from hatchway.gateway import errors
from hatchway.gateway.health import Facts, Ping, health_router
from hatchway.gateway.listening import Server, bind, configured
from hatchway.gateway.settings import split_address

DRAIN_S = 1
"""An answer about health that takes longer is worth nothing any more."""


@asynccontextmanager
async def serving_health(address: str, ping_postgres: Ping, ping_temporal: Ping, facts: Facts) -> AsyncIterator[str]:
    """Answer /healthz and /readyz on `address` (HOST:PORT; port 0 takes a free one) meanwhile. Yields the URL.

    Raises ConfigError when the address cannot be had.
    """
    try:
        host, port = split_address(address)
    except ValueError as e:
        raise ConfigError(f"--health {e}, and not {address!r}") from e
    listener = bind(host, port, "the health port")
    app = FastAPI(title="Hatchway health", docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(app)
    app.include_router(health_router(ping_postgres, ping_temporal, facts))
    started = asyncio.Event()
    server = Server(configured(app, DRAIN_S), started.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(started.wait())
    try:
        await asyncio.wait([serving, starting], return_when=asyncio.FIRST_COMPLETED)
        if not started.is_set():
            raise HatchwayError("the health port could not be served; the log says why")
        name, number = listener.getsockname()[:2]
        yield f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
    finally:
        server.should_exit = True
        starting.cancel()
        await serving
        listener.close()
