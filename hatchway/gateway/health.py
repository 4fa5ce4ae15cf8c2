"""GET /healthz and /readyz, for the supervisor and the load balancer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter

from hatchway.errors import HatchwayError, StoreContended, StoreUnreachable
from hatchway.gateway.errors import RETRY_AFTER_S, ApiError, TemporalUnreachable
from hatchway.gateway.wire import Refusal

Ping = Callable[[], Awaitable[None]]
"""Returns once the server has answered. Raises StoreUnreachable or TemporalUnreachable."""

Facts = Callable[[], Mapping[str, Any]]
"""What else /readyz tells. Raises NotReady."""


class NotReady(HatchwayError):
    """This process cannot do its work now. Says what is missing."""


def health_router(ping_postgres: Ping, ping_temporal: Ping, facts: Facts = dict) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is up, and its loop turns."""
        return {"status": "up"}

    @router.get("/readyz", responses={503: {"model": Refusal}})
    async def readyz() -> dict[str, Any]:
        """Postgres and Temporal have just answered, and nothing else that this process needs is missing."""
        probes = await asyncio.gather(_probe("Postgres", ping_postgres), _probe("Temporal", ping_temporal))
        if silent := [name for name in probes if name]:
            raise _not_ready(f"{' and '.join(silent)} did not answer in time")
        try:
            return {"status": "ready", "postgres": "answered", "temporal": "answered", **facts()}
        except NotReady as e:
            raise _not_ready(str(e)) from e

    return router


def _not_ready(why: str) -> ApiError:
    return ApiError(503, "not_ready", why, {"Retry-After": str(RETRY_AFTER_S)})


async def _probe(name: str, ping: Ping) -> str | None:
    """The name, when it does not answer."""
    try:
        await ping()
    except (StoreUnreachable, StoreContended, TemporalUnreachable):
        return name
    return None
