"""The Workers of one process: one for each task queue that it serves, and for as long as it serves it.

wanted ──► polling ──► not wanted, or otherwise ──► leaving: polls no more, and what runs may finish
                               └─ otherwise: the next one polls at once, beside it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, ServiceClient
from temporalio.worker import Worker

from hatchway.handing_back import HandingBack, shut_down
from hatchway.task_queues import spawn_queue

T = TypeVar("T")

Key = tuple[str, int]
"""A task queue, and how many activities of it run at once; 0: as many as the SDK lets."""

log = structlog.get_logger("hatchway.worker")


@dataclass(frozen=True)
class _Running(Generic[T]):
    worker: Worker
    task: asyncio.Task[None]
    what: T | None


class QueueWorkers(Generic[T]):
    """`T` is what a queue is served with: a Worker that serves it with something else is another one."""

    def __init__(self, client: Client, again: Callable[[Client], Awaitable[Client]] | None = None) -> None:
        """`again` makes a client with a connection of its own, out of one."""
        self._client = client
        self._again = again or connected_again
        self._running: dict[Key, _Running[T]] = {}
        self._leaving: dict[asyncio.Task[None], str] = {}
        """The end of each Worker that leaves, and its queue."""
        self._said = False

    def start(self, key: Key, worker: Worker, what: T | None = None) -> None:
        self._running[key] = _Running(worker, asyncio.create_task(worker.run()), what)
        log.info("polling", task_queue=key[0])

    async def keep(self, wanted: Mapping[Key, T], make: Callable[[Key, T, Client], Worker]) -> None:
        """Start what is wanted and does not run; let go of what is not wanted any more, or not in this way.

        A queue that is to be polled in another way is polled in both meanwhile: what runs there may take an hour yet.
        So for that long more of it may run at once than either way allows; the caps of agents do not hang on that.

        A host's queue stays polled when its last scaler has left the configuration: its agents must still come down.
        """
        for task in [task for task in self._leaving if task.done()]:
            self._leaving.pop(task)
            task.result()
        for key, running in list(self._running.items()):
            if key[0].startswith(spawn_queue("")) and wanted.get(key) != running.what:
                del self._running[key]
                log.info("task queue left", task_queue=key[0])
                self._leaving[asyncio.create_task(running.worker.shutdown())] = key[0]
        for key, what in wanted.items():
            if key not in self._running and (client := await self._client_for(key[0])):
                self.start(key, make(key, what, client), what)

    async def _client_for(self, queue: str) -> Client | None:
        """One that has no Worker of this queue: the SDK takes two of one queue by two connections only.

        None: no further connection can be had now.
        """
        if queue not in self._leaving.values():
            return self._client
        try:
            client = await self._again(self._client)
        except (RPCError, RuntimeError) as e:  # the SDK says either, as the connection or the first call fails
            if not self._said:
                log.warning("no further connection to Temporal; it is tried again", task_queue=queue, error=str(e))
            self._said = True
            return None
        self._said = False
        return client

    def __contains__(self, key: Key) -> bool:
        return key in self._running

    @property
    def polled(self) -> list[str]:
        return sorted({queue for queue, _ in self._running})

    @property
    def ended(self) -> list[str]:
        """Queues whose Worker has failed for good."""
        return sorted(queue for (queue, _), running in self._running.items() if running.task.done())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of the Workers that run; one that is done has failed."""
        return [running.task for running in self._running.values()]

    async def shut_down(self, back: HandingBack, graceful: timedelta, at_once: asyncio.Event) -> bool:
        """Stop all of them. False when something hangs and is left behind."""
        workers = [running.worker for running in self._running.values()]
        return await shut_down(workers, self._leaving, back, graceful, at_once)


async def connected_again(client: Client) -> Client:
    """The same client by a connection of its own. Raises RPCError or RuntimeError when there is none to be had."""
    config = client.config()
    config["service_client"] = await ServiceClient.connect(client.service_client.config)
    return Client(**config)
