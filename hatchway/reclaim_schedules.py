"""Keeps the schedule of each host whose queue this worker polls, and an eye on whose database it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import structlog
from temporalio.client import Client

from hatchway.schedules import make_reclaim_schedule
from hatchway.tie import NamespaceTie, Tie, TiedElsewhere

LOOK_EVERY = 10.0
MAKE_AGAIN_AFTER = 300.0
"""Somebody may have deleted it; a pass does when it finds nobody at the queue, as in the moment before this start."""
PAUSE = 1.0
"""Seconds, as are all of these."""

log = structlog.get_logger("hatchway.worker")


class ReclaimSchedules:
    def __init__(self, temporal: Client, tie: NamespaceTie, installation_id: str) -> None:
        self._temporal = temporal
        self._tie = tie
        self._installation_id = installation_id
        self._made: dict[str, float] = {}
        self._said: str | None = None

    async def keep(self, hosts: Callable[[], Iterable[str]]) -> None:
        """For ever. Raises TiedElsewhere as soon as the database is not this namespace's any more."""
        looked = -LOOK_EVERY
        while True:
            now = time.monotonic()
            due = [host for host in hosts() if now - self._made.get(host, -MAKE_AGAIN_AFTER) >= MAKE_AGAIN_AFTER]
            if now - looked >= LOOK_EVERY or (due and self._said is None):
                looked = now
                await self._look(due)
            await asyncio.sleep(PAUSE)

    async def _look(self, due: Iterable[str]) -> None:
        try:
            tie = await self._tie.refuse_elsewhere(self._installation_id)
            if tie is not Tie.HERE:
                self._say(f"nothing is reclaimed: {self._tie.words(tie)}")
                return
            for host in due:
                made = await make_reclaim_schedule(self._temporal, host)
                log.info("the host's reclaim schedule stands", host_id=host, made=made.value)
                self._made[host] = time.monotonic()
        except TiedElsewhere:
            raise
        except Exception as e:  # whatever either of the two answers, the worker's other work goes on
            self._say(f"the reclaim schedules cannot be looked after: {e}")
        else:
            self._said = None

    def _say(self, words: str) -> None:
        """Once, not every time that it is still so."""
        if words != self._said:
            log.warning(words)
        self._said = words
