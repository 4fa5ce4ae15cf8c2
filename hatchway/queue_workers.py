"""The Workers of one process: one for each task queue that it serves, and for as long as it serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import structlog
from temporalio.worker import Worker

from hatchway.handing_back import HandingBack, shut_down
from hatchway.task_queues import spawn_queue

T = TypeVar("T")

Key = tuple[str, int]
"""A task queue, and how many activities of it run at once; 0: as many as the SDK lets."""

log = structlog.get_logger("hatchway.worker")


class QueueWorkers:
    def __init__(self) -> None:
        self._running: dict[Key, tuple[Worker, asyncio.Task[None]]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Queue to the end of its Worker: the SDK takes no second one of a queue until the first has ended."""

    def start(self, key: Key, worker: Worker) -> None:
        self._running[key] = (worker, asyncio.create_task(worker.run()))
        log.info("polling", task_queue=key[0])

    def keep(self, wanted: Mapping[Key, T], make: Callable[[Key, T], Worker]) -> None:
        """Start what is wanted and does not run; stop what is not wanted any more, or not with so many slots.

        A host's queue stays polled when its last scaler has left the configuration: its agents must still come down.
        """
        for key in [k for k in self._running if k not in wanted and k[0].startswith(spawn_queue(""))]:
            worker, _ = self._running.pop(key)
            log.info("task queue left", task_queue=key[0])
            self._leaving[key[0]] = asyncio.create_task(worker.shutdown())
        for queue in [queue for queue, leaving in self._leaving.items() if leaving.done()]:
            self._leaving.pop(queue).result()
        for key, what in wanted.items():
            if key not in self._running and key[0] not in self._leaving:
                self.start(key, make(key, what))

    def __contains__(self, key: Key) -> bool:
        return key in self._running

    @property
    def polled(self) -> list[str]:
        return sorted({queue for queue, _ in self._running})

    @property
    def ended(self) -> list[str]:
        """Queues whose Worker has failed for good."""
        return sorted(queue for (queue, _), (_, task) in self._running.items() if task.done())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of the Workers that run; one that is done has failed."""
        return [task for _, task in self._running.values()]

    async def shut_down(self, back: HandingBack, graceful: timedelta, at_once: asyncio.Event) -> bool:
        """Stop all of them. False when something hangs and is left behind."""
        workers = [worker for worker, _ in self._running.values()]
        return await shut_down(workers, self._leaving.values(), back, graceful, at_once)
