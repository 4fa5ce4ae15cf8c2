"""The backends that this process has reached, and whether they still answer.

asked for ──► connecting ──► reached: its exits are watched, its networks kept, and it is asked every few seconds
                │    ▲  │                   │    ▲
                └────┘  │ tried again       └────┘ away: named, and served all the same, for when it comes back
                        ▼
                     refused: another engine than the one that bears this worker's host id. Nobody else hears of it
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine
from datetime import timedelta
from typing import Any

import structlog

from hatchway.backends.base import Backend, OnEngine, Pingable
from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import Scaler, ScalerType
from hatchway.errors import HatchwayError
from hatchway.host.watch import HostWatch
from hatchway.model import ComputeExit

log = structlog.get_logger("hatchway.worker")

RECONNECT_EVERY = 2.0
ASK_EVERY = 3.0
"""Seconds, both of them."""
ASK_LIMIT = timedelta(seconds=3)
"""How long an engine may take to say that it is there: so one that hangs is away within two of these."""


class WorkerRefused(HatchwayError):
    """This worker cannot run here, or cannot serve one of its scalers. Says what to do."""


class Reach:
    """Connects to what it is asked for, however long that takes, and beside everything else: an engine may hang."""

    def __init__(
        self,
        make: Callable[[Scaler], Awaitable[Backend]],
        on_exit: Callable[[ComputeExit], Awaitable[None]],
        *,
        machine: str,
        named: bool,
    ) -> None:
        """`make` raises while a backend cannot be reached. `machine`: the worker's own host id. `named`:
        an operator gave that, so two engines would bear the same one."""
        self._make = make
        self._on_exit = on_exit
        self._machine = machine
        self._named = named
        self._reached: dict[str, Backend] = {}
        self.on_host: dict[str, dict[str, Backend]] = {}
        """Host id to backend type to backend: what a host's queue is served with. Grows while the queue is polled."""
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._away: set[str] = set()
        self._refused: dict[str, str] = {}

    def of(self, scaler: Scaler) -> Backend | None:
        """The backend that serves this scaler, if this worker is one of its hosts and has reached it."""
        if self._is_for_others(scaler):
            return None
        key = backend_key(scaler)
        if key not in self._reached:
            if key not in self._connecting and key not in self._refused:
                self._connecting[key] = asyncio.create_task(self._connect(key, scaler))
            return None
        backend = self._reached[key]
        # A cloud's or a customer's machines have no host id of ours: then it is the worker's own that is meant.
        here = self._machine if scaler.type in (ScalerType.EC2, ScalerType.EVENT) else backend.host_id
        return backend if not scaler.hosts or here in scaler.hosts else None

    def answers(self, scaler: Scaler) -> bool:
        """Whether its backend has been reached, and has answered when it was asked last."""
        if self._is_for_others(scaler):
            return True  # nothing is asked of it here
        key = backend_key(scaler)
        return key in self._reached and key not in self._away

    def serves(self, scaler: Scaler) -> bool:
        """Whether this worker is one of its hosts, and can do what it asks for."""
        return not self._is_for_others(scaler) and self.answers(scaler)

    def _is_for_others(self, scaler: Scaler) -> bool:
        """Known before its backend is: a worker that was given its name has no other, and its name one engine."""
        return self._named and bool(scaler.hosts) and self._machine not in scaler.hosts

    def why_refused(self, scaler: Scaler) -> str | None:
        """Why this worker can never serve this scaler, where that is so."""
        return self._refused.get(backend_key(scaler))

    def refuses(self, ended: asyncio.Task[Any]) -> bool:
        """Whether this is one of `tasks` that ended because its engine cannot be served here: it is left out then.

        That is one scaler's trouble, which a configuration may bring at any time: what else this worker serves goes on.
        """
        for key, task in self._connecting.items():
            if task is ended and not task.cancelled() and isinstance(why := task.exception(), WorkerRefused):
                del self._connecting[key]
                self._refused[key] = str(why)
                log.error("a backend is not served here", backend=key, error=str(why))
                return True
        return False

    def give_up_all_but(self, wanted: Container[str]) -> None:
        """Stop trying what nobody asks for any more. What has been reached stays."""
        for key in [key for key in self._refused if key not in wanted]:
            del self._refused[key]
        for key in [key for key, task in self._connecting.items() if key not in wanted and not task.done()]:
            self._connecting.pop(key).cancel()

    @property
    def host_ids(self) -> list[str]:
        return list(self.on_host)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs here; one that has ended by itself has failed for good, or has been refused."""
        connecting = [task for task in self._connecting.values() if not task.done() or task.exception() is not None]
        return [*self._keeping.values(), *connecting]

    def leave(self) -> None:
        """Stop connecting, watching and asking."""
        for task in (*self._connecting.values(), *self._keeping.values()):
            task.cancel()

    async def close(self) -> None:
        """Let go of all backends. Leaves their compute alone."""
        await asyncio.gather(*(backend.close() for on in self.on_host.values() for backend in on.values()))

    async def _connect(self, key: str, scaler: Scaler) -> None:
        said = False
        while key not in self._reached:
            try:
                await self._welcome(key, scaler, await self._make(scaler))
            except WorkerRefused:
                raise
            except Exception as e:  # a proxy's page must not end this worker's other backends
                if not said:
                    log.warning(
                        "a backend cannot be reached; it is tried again",
                        scaler=scaler.name, error=str(e), kind=type(e).__name__,
                    )  # fmt: skip
                said = True
                await asyncio.sleep(RECONNECT_EVERY)

    async def _welcome(self, key: str, scaler: Scaler, backend: Backend) -> None:
        here = self.on_host.setdefault(backend.host_id, {})
        if known := here.get(scaler.type):  # one engine by two addresses: its own id says so
            try:
                if self._named:
                    await self._refuse_another_engine(known, backend)
            finally:
                await backend.close()
            backend = known
        else:
            here[scaler.type] = backend
            self._keep(key, HostWatch([backend], self._on_exit).run())
            if isinstance(backend, ContainerBackend):
                self._keep(f"networks of {key}", backend.keep_networks(isolating=scaler.network_isolation))
        if isinstance(backend, Pingable):
            self._away.add(key)  # with a host id that was given, nothing has been asked of it yet
            self._keep(f"answers of {key}", self._ask(key, backend))
        self._reached[key] = backend

    async def _refuse_another_engine(self, known: Backend, backend: Backend) -> None:
        """Raise WorkerRefused unless it is the same engine; TransientSpawnError while one of the two does not say."""
        if isinstance(known, OnEngine) and isinstance(backend, OnEngine):
            first, second = await known.engine_id(), await backend.engine_id()
            if first == second:
                return
            which = f": it is {second}, and {first} bears that name"
        else:
            which = ""
        raise WorkerRefused(
            f"two container engines under one host id, {backend.host_id}{which}. Start a worker for each with a "
            "--host-id of its own, or leave --host-id out so that each engine's own id is used"
        )

    def _keep(self, name: str, forever: Coroutine[Any, Any, None]) -> None:
        self._keeping[name] = asyncio.create_task(forever)

    async def _ask(self, key: str, backend: Pingable) -> None:
        """Know whether the engine is there, without ever waiting for it where somebody asks for this worker's health.

        A spawn that fails is no answer: it may be the job's doing, and on a quiet scaler there is none.
        """
        told = False
        while True:
            try:
                await backend.ping(ASK_LIMIT)
            except Exception as e:  # whatever an SDK makes of half an answer, this worker and its other backends go on
                if not told:
                    log.warning("a backend does not answer", backend=key, error=str(e), kind=type(e).__name__)
                self._away.add(key)
                told = True
            else:
                if told:
                    log.info("a backend answers again", backend=key)
                self._away.discard(key)
                told = False
            await asyncio.sleep(ASK_EVERY)


def backend_key(scaler: Scaler) -> str:
    """What scalers that share a backend have in common, for people too."""
    match scaler.type:
        case ScalerType.BARE_METAL:
            return "bare-metal"
        case ScalerType.EC2 | ScalerType.EVENT:
            return f"{scaler.type.value} {scaler.name}"
        case _:
            return f"container {scaler.host or 'default'}"
