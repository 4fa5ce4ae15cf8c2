"""Whether a stack can take a provision: asked of the servers themselves, not guessed from time gone by."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
from temporalio.client import Client

from hatchway.polling import is_polled

PATIENCE_S = 6.0
"""A little more than a gateway gives its own two servers to answer."""


async def missing(client: Client, gateway_url: str, queues: Sequence[str]) -> list[str]:
    """What is not there yet, in words: the gateway, or a worker on one of the task queues."""
    found = [] if await _answers(f"{gateway_url}/readyz") else ["the gateway"]
    return found + [f"a worker on task queue {queue}" for queue in queues if not await is_polled(client, queue)]


async def _answers(url: str) -> bool:
    # trust_env off: a proxy in the environment has nothing to do with what listens on this machine.
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        try:
            return (await http.get(url)).status_code == 200
        except httpx.TransportError:
            return False
