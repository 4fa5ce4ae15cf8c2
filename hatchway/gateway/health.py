"""GET /healthz and /readyz, for the supervisor and the load balancer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter

from hatchway.errors import StoreContended, StoreUnreachable
from hatchway.gateway.errors import RETRY_AFTER_S, ApiError, TemporalUnreachable
from hatchway.gateway.wire import Refusal

Ping = Callable[[], Awaitable[None]]
"""Returns once the server has answered. Raises StoreUnreachable or TemporalUnreachable."""


def health_router(ping_postgres: Ping, ping_temporal: Ping) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is up."""
        return {"status": "up"}

    @router.get("/readyz", responses={503: {"model": Refusal}})
    async def readyz() -> dict[str, str]:
        """Postgres and Temporal have just answered."""
        probes = await asyncio.gather(_probe("Postgres", ping_postgres), _probe("Temporal", ping_temporal))
        silent = [name for name in probes if name]
        if silent:
            raise ApiError(
                503,
                "not_ready",
                f"{' and '.join(silent)} did not answer in time",
                {"Retry-After": str(RETRY_AFTER_S)},
            )
        return {"status": "ready", "postgres": "answered", "temporal": "answered"}

    return router


async def _probe(name: str, ping: Ping) -> str | None:
    """The name, when it does not answer."""
    try:
        await ping()
    except (StoreUnreachable, StoreContended, TemporalUnreachable):
        return name
    return None
