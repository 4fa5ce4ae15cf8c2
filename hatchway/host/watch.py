"""Watches the compute of this worker's hosts and engines, and tells each end to whoever must know."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import structlog

from hatchway.backends.base import Backend
from hatchway.model import ComputeExit

FIRST_PAUSE = 0.5  # seconds; doubled after each failure
LONGEST_PAUSE = 30.0  # seconds
AT_ONCE = 32  # deliveries in flight per backend; a rebooted host reports all of its agents in one go

log = structlog.get_logger(__name__)


class HostWatch:
    """Follows `exits()` of each backend and hands every end to `on_exit` until that accepts it.

    Each backend is followed on its own: one that hangs or fails holds up none of the others. An end may be told more
    than once (a backend tells all that still stand when it is followed anew); `on_exit` must not mind.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        on_exit: Callable[[ComputeExit], Awaitable[None]],
        *,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """`on_exit` raises to say "not now". Pauses are seconds, doubled from the first to the longest."""
        self._backends = tuple(backends)
        self._on_exit = on_exit
        self._first_pause = first_pause
        self._longest_pause = longest_pause

    async def run(self) -> None:
        """Watch until cancelled. An end that is not accepted by then is told again by the next watch."""
        async with asyncio.TaskGroup() as tasks:
            for backend in self._backends:
                tasks.create_task(self._follow(backend), name=f"watch {backend.host_id}")

    async def _follow(self, backend: Backend) -> None:
        delivering: set[str] = set()
        room = asyncio.Semaphore(AT_ONCE)
        failures = 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    async for ended in backend.exits():
                        failures = 0
                        if ended.agent_id not in delivering:
                            delivering.add(ended.agent_id)
                            tasks.create_task(self._deliver(ended, room, delivering), name=f"tell {ended.agent_id}")
                    log.info("watch ended, following anew", host_id=backend.host_id)
                except Exception as e:  # whatever a backend raises, its host must stay watched
                    log.warning(
                        "watch failed, following anew", host_id=backend.host_id, error=str(e), kind=type(e).__name__
                    )
                failures += 1
                await asyncio.sleep(self._pause(failures))

    async def _deliver(self, ended: ComputeExit, room: asyncio.Semaphore, delivering: set[str]) -> None:
        failures = 0
        while True:
            try:
                async with room:
                    await self._on_exit(ended)
            except Exception as e:  # a server that does not answer, above all: the end stays true and is told again
                failures += 1
                log.warning("end not told yet", agent_id=ended.agent_id, error=str(e), kind=type(e).__name__)
                await asyncio.sleep(self._pause(failures))
            else:
                delivering.discard(ended.agent_id)
                log.info("compute ended", agent_id=ended.agent_id, exit_code=ended.exit_code)
                return

    def _pause(self, failures: int) -> float:
        """Doubled each time, with jitter: the workers of one host do not come back in step."""
        longest = min(self._longest_pause, self._first_pause * 2.0 ** min(failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy
