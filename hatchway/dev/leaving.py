"""What becomes of the agents when a stack is stopped: they are processes that would outlive it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from temporalio.service import RPCError, RPCStatusCode

from hatchway.client import HatchwayClient
from hatchway.dev.stack import Stack
from hatchway.store.pool import Database
from hatchway.store.slots import Slots

LIMIT = timedelta(seconds=15)


async def let_agents_go(stack: Stack, limit: timedelta = LIMIT) -> list[str]:
    """Release every agent now, busy or not, and answer those that still hold a slot at the limit."""
    client = HatchwayClient(await stack.connect())
    end = time.monotonic() + limit.total_seconds()
    asked: set[str] = set()
    async with Database.open(stack.database_url, max_size=2) as db:
        # Looked up anew each time: a slot that comes free goes to the head of the line, and that is one more.
        while (rows := await Slots(db).list()) and time.monotonic() < end:
            for row in rows:
                if row.workflow_id and row.agent_id not in asked:
                    asked.add(row.agent_id)
                    await _release(client, row.workflow_id, row.agent_id)
            await asyncio.sleep(0.1)
    return [row.agent_id for row in rows]


async def _release(client: HatchwayClient, workflow_id: str, agent_id: str) -> None:
    try:
        await client.release(workflow_id, agent_id, by="hatchway dev", now=True)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:  # closed: its teardown is under way already
            raise
