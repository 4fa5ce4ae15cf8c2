"""Whether a worker can do its work, for `hatchway worker --health`: what is asked of it, and what it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client

from hatchway.gateway.health import NotReady
from hatchway.gateway.health_server import serving_health
from hatchway.gateway.patience import Patience
from hatchway.gateway.provisions import Provisions
from hatchway.store.pool import Database

log = structlog.get_logger("hatchway.worker")

PATIENCE = timedelta(seconds=5)
"""For Postgres and for Temporal, side by side."""


@dataclass(frozen=True)
class Polling:
    """What a worker polls, against what its configuration asks of it."""

    config_version: int | None = None
    trouble: str | None = None
    """Why the configuration cannot be read, or why this worker ends."""
    polled: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Queues that it should poll and does not."""
    unreached: list[str] = field(default_factory=list)
    """Scalers whose engine has not answered yet."""
    refused: dict[str, str] = field(default_factory=dict)
    """Those of them that this worker can never serve, and why."""
    served: int = 0
    """Scalers whose backend it reaches."""
    deployment: str | None = None


def facts(polling: Polling) -> dict[str, Any]:
    """What /readyz adds to the servers' answers. Raises NotReady, which says what is missing.

    An engine that is not reached does not make a worker unready while it serves another scaler: in a cluster of many
    kinds of hosts, no worker reaches every backend. It is named.
    """
    if polling.trouble:
        raise NotReady(polling.trouble)
    if polling.config_version is None:
        raise NotReady("the configuration has not been read yet")
    if polling.missing:
        raise NotReady(f"nothing polls {', '.join(polling.missing)} here")
    if polling.unreached and not polling.served:
        why = "".join(f"; {scaler}: {why}" for scaler, why in polling.refused.items())
        raise NotReady(f"none of its backends has been reached: that of {', '.join(polling.unreached)}{why}")
    answer: dict[str, Any] = {"config_version": polling.config_version, "polling": polling.polled}
    if polling.unreached:
        answer["unreached"] = polling.unreached
    if polling.refused:
        answer["refused"] = polling.refused
    if polling.deployment:
        answer["deployment"] = polling.deployment
    return answer


@asynccontextmanager
async def answering(
    address: str | None, db: Database, temporal: Client, polling: Callable[[], Polling]
) -> AsyncIterator[None]:
    """Answer on `address` (HOST:PORT) meanwhile; None: no port. Raises ConfigError when it cannot be had."""
    if address is None:
        yield
        return
    patience, ping_temporal = Patience(PATIENCE), Provisions(temporal, PATIENCE).ping

    async def ping_postgres() -> None:
        await patience(db.ping())

    async with serving_health(address, ping_postgres, ping_temporal, lambda: facts(polling())) as url:
        log.info("health is answered", url=url)
        yield
