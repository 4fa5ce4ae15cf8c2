"""Heartbeats are written in batches: whatever arrives while one statement runs goes into the next one.

So a lone heartbeat waits for nothing, and a thousand at once cost two or three statements, without a timer to tune.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from hatchway.store.presence import BeatAnswer

MAX_BATCH = 500
"""Bounds the row locks that one statement holds."""

Write = Callable[[Sequence[tuple[str, str]]], Awaitable[dict[str, BeatAnswer]]]
"""(agent_id, registration_id) pairs to an answer by agent id; each agent at most once a call."""


class HeartbeatBatches:
    """Collects heartbeats of many requests into few statements, one at a time."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[tuple[str, str], asyncio.Future[BeatAnswer]] = {}
        self._writer: asyncio.Task[None] | None = None

    async def beat(self, agent_id: str, registration_id: str) -> BeatAnswer:
        """Write one heartbeat and return its answer. Raises what its batch's statement raised."""
        key = (agent_id, registration_id)
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._drain())
        # One caller that hangs up must not take the answer from the others that share it.
        return await asyncio.shield(future)

    async def _drain(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                answers = await self._write(list(batch))
            # Every waiting request has to hear it; each answers with its own kind of refusal.
            except Exception as e:
                for future in batch.values():
                    future.set_exception(e)
                    future.exception()  # a caller that has gone away leaves it unread
                continue
            for (agent_id, _), future in batch.items():
                if answer := answers.get(agent_id):
                    future.set_result(answer)
                else:
                    future.set_exception(LookupError(f"the database gave no answer for agent {agent_id}"))
                    future.exception()

    def _take(self) -> dict[tuple[str, str], asyncio.Future[BeatAnswer]]:
        """The next batch. A second process of an agent waits for the next one: answers are by agent id."""
        batch: dict[tuple[str, str], asyncio.Future[BeatAnswer]] = {}
        agents: set[str] = set()
        for key in list(self._waiting):
            if len(batch) == MAX_BATCH:
                break
            if key[0] not in agents:
                agents.add(key[0])
                batch[key] = self._waiting.pop(key)
        return batch
