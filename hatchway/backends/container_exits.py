"""Containers of ours that ended by themselves, or were taken away from outside.

The engine's event stream tells of them at once; a look at all exited containers, when the watch begins and every few
seconds after, finds those that ended while nobody watched and those whose event was lost.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from hatchway.backends.container_create import AGENT_ID, is_named_for, is_stopping, secret_values
from hatchway.backends.container_engine import Client, Engine
from hatchway.backends.container_errors import EngineRefused
from hatchway.backends.container_network import INSTALLATION
from hatchway.backends.container_own import Listed, own, was_renamed
from hatchway.backends.errors import log_tail
from hatchway.model import ComputeExit

log = structlog.get_logger(__name__)

LOOK_EVERY = 15.0
"""Seconds between two looks at all exited containers. Also how long the stream may be silent before it is opened anew,
so that a connection that died without a word is noticed."""
_TAIL = 200
"""Lines that are fetched: more than travel, so that redaction sees a secret that spans several."""
_REMEMBERED = 20_000


class _Recent:
    """A set of container ids that forgets the oldest ones."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, container_id: str) -> None:
        self._ids[container_id] = None
        while len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)

    def __contains__(self, container_id: str) -> bool:
        return container_id in self._ids


class Exits:
    """One watch over one engine. Each container's end is told once a watch, and again by the next one."""

    def __init__(self, engine: Engine, installation_id: str) -> None:
        self._engine = engine
        self._installation_id = installation_id
        self._told = _Recent()
        self._started = _Recent()
        self._events: asyncio.Queue[dict[str, Any] | BaseException] = asyncio.Queue()
        self._over = threading.Event()

    async def watch(self) -> AsyncGenerator[ComputeExit]:
        """Runs until it is closed. Raises EngineUnreachable or EngineRefused when the engine goes away."""
        since = await self._engine.call("tell the time", _engine_time)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, args=(loop, since), daemon=True, name="engine: events").start()
        try:
            while True:
                for ended in await self._look():
                    yield ended
                next_look = time.monotonic() + LOOK_EVERY
                while (left := next_look - time.monotonic()) > 0:
                    event = await self._next_event(left)
                    if event is not None and (exit_ := await self._told_by(event)) is not None:
                        yield exit_
        finally:
            self._over.set()

    async def _next_event(self, seconds: float) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(seconds):
                event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, BaseException):
            raise event
        return event

    def _listen(self, loop: asyncio.AbstractEventLoop, since: str) -> None:
        last = since
        try:
            while not self._over.is_set():
                last = self._engine.stream("follow its events", partial(self._follow, loop=loop, since=last))
        except Exception as e:  # handed over to the coroutine that watches
            self._post(loop, e)

    def _follow(self, client: Client, loop: asyncio.AbstractEventLoop, since: str) -> str:
        """Pass events on until the stream is silent for a while. Returns the time of the last one."""
        filters = {
            "type": ["container"],
            "event": ["start", "die", "died"],  # Podman filters by `died`, and then calls it `die` like Docker
            "label": [f"{INSTALLATION}={self._installation_id}"],
        }
        parameters = {"filters": json.dumps(filters), "since": since}
        url = f"{client.base_url}/v{client.api_version}/events"
        with client.get(url, params=parameters, stream=True, timeout=(10, LOOK_EVERY)) as response:
            if response.status_code >= 400:
                raise EngineRefused("follow its events", response.status_code, str(response.text))
            try:
                for line in response.iter_lines(chunk_size=None):
                    if self._over.is_set():
                        return since
                    if line.strip():
                        event = json.loads(line)
                        nanos = int(event["timeNano"])
                        since = f"{nanos // 10**9}.{nanos % 10**9:09d}"
                        self._post(loop, event)
            except OSError as e:
                if "timed out" not in str(e).lower():
                    raise
        return since

    def _post(self, loop: asyncio.AbstractEventLoop, event: dict[str, Any] | BaseException) -> None:
        try:
            loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            self._over.set()  # the loop is closed: nobody listens any more

    async def _look(self) -> list[ComputeExit]:
        """Everything of ours that has ended and was not told yet, in the order in which it was made."""
        filters = {"label": [f"{INSTALLATION}={self._installation_id}"]}

        def listed(client: Client) -> list[Listed]:
            return own(client, client.containers(all=True, filters=filters))

        ours = await self._engine.call("list its containers", listed)
        exits: list[ComputeExit] = []
        for container in reversed(ours):  # the engine lists the newest first
            if container["State"] == "running":
                self._started.add(container["Id"])
            elif container["State"] in _ENDED and not any(map(is_stopping, container.get("Names") or [])):
                exit_ = await self._exit_of(container["Id"], container["Labels"][AGENT_ID], None)
                exits += [exit_] if exit_ is not None else []
        return exits

    async def _told_by(self, event: dict[str, Any]) -> ComputeExit | None:
        container_id, attributes = event["Actor"]["ID"], event["Actor"]["Attributes"]
        if event["Action"] == "start":
            self._started.add(container_id)
            return None
        agent_id, name = attributes.get(AGENT_ID, ""), attributes.get("name", "")
        if not agent_id or is_stopping(name):
            return None
        if not is_named_for(agent_id, [name]) and not await self._engine.call(
            "look whose container it was", lambda c: was_renamed(c, self._installation_id, attributes)
        ):
            return None
        code = attributes.get("exitCode")
        return await self._exit_of(container_id, agent_id, int(code) if code else None)

    async def _exit_of(self, container_id: str, agent_id: str, code: int | None) -> ComputeExit | None:
        if container_id in self._told:
            return None
        try:
            exit_ = await self._engine.call(
                "read how a container ended", lambda c: compute_exit(c, container_id, agent_id)
            )
        except EngineRefused as e:
            if not e.not_found:
                raise
            # A start that failed emits the same event, and its spawn has removed the container: that is no agent's end.
            if container_id not in self._started:
                return None
            exit_ = ComputeExit(agent_id=agent_id, exit_code=code, log_tail="the container was removed from outside")
        if exit_ is not None:
            self._told.add(container_id)
        return exit_


def _engine_time(client: Client) -> str:
    """The engine's own clock, in whole seconds of Unix time: the only form of `since` that all engines take."""
    return str(int(datetime.fromisoformat(client.info()["SystemTime"]).timestamp()))


_ENDED = frozenset({"exited", "dead", "stopped"})


def compute_exit(client: Client, container_id: str, agent_id: str) -> ComputeExit | None:
    """How an agent's own container ended and what it last printed, its secrets masked.

    None where it has not ended, and where its end is a teardown's doing.
    """
    found = client.inspect_container(container_id)
    state, name = found["State"], found.get("Name") or ""
    if state["Status"] not in _ENDED or is_stopping(name):
        return None
    tail = read_log(client, container_id, _TAIL)
    if state.get("OOMKilled"):
        tail += f"\nkilled: out of memory (limit: {found['HostConfig'].get('Memory') or 'the whole machine'} bytes)"
    elif state.get("Error"):
        tail += f"\n{state['Error']}"
    return ComputeExit(
        agent_id=agent_id, exit_code=state.get("ExitCode"), log_tail=log_tail(tail, secret_values(found))
    )


def read_log(client: Client, container_id: str, lines: int) -> str:
    """The last lines of both streams as they were printed: still to be redacted."""
    try:
        return str(client.logs(container_id, stdout=True, stderr=True, tail=lines).decode("utf-8", "replace"))
    except Exception as e:  # a log that cannot be read must not hide how the container ended
        log.warning("container_log_unreadable", container_id=container_id, error=str(e))
        return f"the container's log cannot be read: {type(e).__name__}"
