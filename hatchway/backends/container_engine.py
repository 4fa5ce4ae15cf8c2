"""One container engine: its client, its threads, and a deadline on everything that is asked of it.

The Docker SDK blocks, and an engine can accept a connection and never answer. So each call runs in a thread of its own,
and whoever waits for it leaves at the deadline; the thread ends when its socket does. The threads are daemons: one that
hangs must not keep the process from exiting, which a ThreadPoolExecutor's would. Their number is bounded, so a hanging
engine costs its own backend its threads and nobody else anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import docker
import structlog
from docker.errors import APIError, DockerException
from docker.utils import kwargs_from_env

from hatchway.backends.container_errors import EngineRefused, EngineUnreachable

log = structlog.get_logger(__name__)

T = TypeVar("T")
Client = Any
"""A `docker.APIClient`. Its stubs leave half of its calls untyped; what comes back is JSON either way."""

CALL_TIMEOUT = timedelta(seconds=30)
CALLS = 32
PULLS = 32
"""Threads of their own for pulls: a registry that hangs must not stand in the way of a teardown."""


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself. `arch` is Go's name (amd64), `cpus` what its containers may use together."""

    host_id: str
    os: str
    arch: str
    cpus: int

    @property
    def platform(self) -> str:
        return f"{self.os}/{self.arch}"


@dataclass(frozen=True)
class _Call(Generic[T]):
    doing: str
    work: Callable[[Client], T]
    answer: asyncio.Future[T]
    lane: asyncio.Semaphore
    late: Callable[[Client, T], None] | None


class Engine:
    """A Docker or Podman API. `base_url` None: DOCKER_HOST and its TLS variables, else the local socket."""

    def __init__(self, base_url: str | None, call_timeout: timedelta = CALL_TIMEOUT) -> None:
        self._base_url = base_url
        self.call_timeout = call_timeout
        self.calls = asyncio.Semaphore(CALLS)
        self.pulls = asyncio.Semaphore(PULLS)
        self._pings = asyncio.Semaphore(1)  # one thread that hangs says it all
        self._making_client = threading.Lock()
        self._client: Client | None = None
        self._facts: EngineFacts | None = None

    @property
    def address(self) -> str:
        """Where the engine is, for people."""
        return self._base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"

    @property
    def platform(self) -> str:
        """Its platform for people, as far as it was asked."""
        return self._facts.platform if self._facts else "unknown yet"

    async def call(
        self,
        doing: str,
        work: Callable[[Client], T],
        *,
        timeout: timedelta | None = None,
        lane: asyncio.Semaphore | None = None,
        late: Callable[[Client, T], None] | None = None,
    ) -> T:
        """Run `work` in a thread and wait for it, at most `timeout` (and as long again for a free thread).

        `late` undoes an effect that happened when nobody waited for it any more. Raises EngineUnreachable and
        EngineRefused.
        """
        limit = (timeout or self.call_timeout).total_seconds()
        lane = lane or self.calls
        try:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the result.
            async with asyncio.timeout(limit):
                await lane.acquire()
        except TimeoutError:
            raise EngineUnreachable(
                f"the container engine at {self.address} does not answer: every call to it is stuck, "
                f"and none ended within {limit:g} s to make room to {doing}"
            ) from None
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = _Call(doing, work, answer, lane, late)
        try:
            threading.Thread(target=self._work, args=(call,), daemon=True, name=f"engine: {doing}").start()
        except RuntimeError as e:
            lane.release()
            raise EngineUnreachable(f"this worker cannot start one more thread to {doing}: {e}") from None
        done, _ = await asyncio.wait({answer}, timeout=limit)
        if done:
            return answer.result()
        answer.cancel()
        raise EngineUnreachable(
            f"the container engine at {self.address} did not {doing} within {limit:g} s; "
            "see whether `docker info` answers there"
        )

    def _work(self, call: _Call[Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call.work(self._connected())
        except BaseException as e:  # handed over to the coroutine that waits, whatever it is
            error = self._translated(e, call.doing)
        try:
            call.answer.get_loop().call_soon_threadsafe(self._deliver, call, result, error)
        except RuntimeError:
            # The loop is closed: the process is leaving, and nobody is there to be told.
            log.debug("engine_answer_dropped", doing=call.doing)

    def _deliver(self, call: _Call[Any], result: Any, error: BaseException | None) -> None:
        call.lane.release()
        if not call.answer.done():
            if error is None:
                call.answer.set_result(result)
            else:
                call.answer.set_exception(error)
        elif error is None and call.late is not None:
            log.warning("engine_answered_late", doing=call.doing, engine=self.address)
            threading.Thread(target=self._undo, args=(call, result), daemon=True, name=f"undo: {call.doing}").start()

    def _undo(self, call: _Call[Any], result: Any) -> None:
        if call.late is None:
            return
        try:
            call.late(self._connected(), result)
        except Exception as e:  # the reclaim pass finds what stays behind by its labels
            log.warning("engine_late_undo_failed", doing=call.doing, error=str(self._translated(e, call.doing)))

    def stream(self, doing: str, work: Callable[[Client], T]) -> T:
        """Run `work` in the calling thread, for as long as it takes. Raises EngineUnreachable, EngineRefused."""
        try:
            return work(self._connected())
        except Exception as e:
            raise self._translated(e, doing) from None

    def _connected(self) -> Client:
        with self._making_client:
            if self._client is None:
                settings = {"base_url": self._base_url} if self._base_url else kwargs_from_env()
                self._client = docker.APIClient(
                    version="auto",
                    timeout=max(1, int(self.call_timeout.total_seconds())),
                    max_pool_size=CALLS + PULLS,
                    **settings,
                )
            return self._client

    def _translated(self, e: BaseException, doing: str) -> BaseException:
        if isinstance(e, APIError) and e.status_code is not None:
            return EngineRefused(doing, e.status_code, str(e.explanation or e))
        # requests' own errors are OSErrors. What is no JSON was said by something that is no engine, a proxy perhaps.
        if isinstance(e, (DockerException, OSError, json.JSONDecodeError)):
            return EngineUnreachable(
                f"the container engine at {self.address} cannot be reached to {doing}: {e}; "
                "check that it runs, and that this user may open its socket"
            )
        return e

    async def facts(self) -> EngineFacts:
        """Asked once: an engine's platform and identity do not change while it runs."""
        return self._facts or await self.facts_now()

    async def facts_now(self) -> EngineFacts:
        """Asked now: behind an address, another engine may have taken the place of the one that answered before."""
        self._facts = await self.call("say what it is", _ask_facts)
        return self._facts

    async def ping(self, limit: timedelta) -> None:
        """Return once it has answered. Raises EngineUnreachable, EngineRefused."""
        await self.call("answer", lambda c: c.ping(), timeout=limit, lane=self._pings)

    async def close(self) -> None:
        """Close the idle connections. Calls in flight end by their own deadlines."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _ask_facts(client: Client) -> EngineFacts:
    version, info, again = client.version(), client.info(), client.info()
    return EngineFacts(
        host_id=_host_id(info, again), os=version["Os"], arch=version["Arch"], cpus=int(info.get("NCPU") or 0)
    )


def _host_id(info: dict[str, Any], again: dict[str, Any]) -> str:
    """The engine's own id, spelled so that it can stand in a queue's name and in `hosts:`.

    Podman's Docker API makes up a new id for every answer: its machine's name and its storage's place stand for it.
    """
    identity = info.get("ID") or ""
    if identity and identity == again.get("ID"):
        return f"docker-{identity.replace(':', '').lower()}"
    place = f"{info.get('Name')}\0{info.get('DockerRootDir')}"
    return f"podman-{hashlib.sha256(place.encode()).hexdigest()[:24]}"
