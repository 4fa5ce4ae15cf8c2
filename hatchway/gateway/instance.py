"""A gateway's own heartbeat: the reaper trusts an agent's silence only while a gateway was there to hear it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from hatchway.errors import StoreContended, StoreUnreachable
from hatchway.gateway.intake import described

log = structlog.get_logger(__name__)


async def keep_alive(beat: Callable[[], Awaitable[None]], every: timedelta) -> None:
    """Beat until cancelled. An outage is logged once when it begins and once when it ends."""
    away = False
    while True:
        try:
            await beat()
        except (StoreUnreachable, StoreContended) as e:
            if not away:
                log.warning("gateway_heartbeat_lost", reason=str(e))
            away = True
        # A bug in one beat must not end all of them: without a heartbeat the reaper goes blind.
        except Exception as e:
            log.error("gateway_heartbeat_bug", **described(e))
        else:
            if away:
                log.info("gateway_heartbeat_back")
            away = False
        await asyncio.sleep(every.total_seconds())
