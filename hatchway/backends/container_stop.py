"""Stopping and removing one container, so that a second try, in any process, goes on where the first one broke off."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import structlog

from hatchway.backends.container_create import AGENT_ID, is_stopping, stop_grace, stopping_name
from hatchway.backends.container_engine import Client, Engine
from hatchway.backends.container_errors import EngineRefused
from hatchway.errors import DestroyError

log = structlog.get_logger(__name__)

_POLL = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds between two looks at a container that was told to stop. Asked for and not waited for: a waiting call would
hold one of the engine's threads for the whole grace."""
_REMOVAL = timedelta(seconds=20)
"""How long a removal may be under way before the teardown's round is given up as not confirmed."""


class Stopper:
    """Remembers since when each container knows that it should stop: a teardown's next round does not grant it anew.

    Lost with the process, which costs the agent one more grace and nothing else.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: dict[str, float] = {}

    async def remove(self, container_id: str) -> None:
        """The container is gone when this returns, with its anonymous volumes. Absent already is as good.

        Its grace is the one that its spawn wrote down. Raises DestroyError, EngineUnreachable, EngineRefused.
        """
        try:
            granted = await self._engine.call("stop a container", lambda c: _ask_to_stop(c, container_id))
            if granted:
                await self._await_end(container_id, granted)
            await self._engine.call(
                "remove a container", lambda c: c.remove_container(container_id, v=True, force=True)
            )
        except EngineRefused as e:
            if not e.not_found:
                if not e.being_removed:
                    raise
                await self._await_removal(container_id)
        self._asked.pop(container_id, None)

    async def _await_end(self, container_id: str, granted: timedelta) -> None:
        since = self._asked.setdefault(container_id, time.monotonic())
        looks = 0
        while (left := since + granted.total_seconds() - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _POLL[min(looks, len(_POLL) - 1)]))
            looks += 1
            if not await self._engine.call("look at a container", lambda c: _runs(c, container_id)):
                return
        log.warning("container_killed_after_grace", container_id=container_id, grace_s=granted.total_seconds())

    async def _await_removal(self, container_id: str) -> None:
        deadline = time.monotonic() + _REMOVAL.total_seconds()
        while time.monotonic() < deadline:
            try:
                await self._engine.call("look at a container", lambda c: c.inspect_container(container_id))
            except EngineRefused as e:
                if e.not_found:
                    return
                raise
            await asyncio.sleep(_POLL[2])
        raise DestroyError(
            f"the engine has been removing container {container_id[:12]} for more than {_REMOVAL.total_seconds():g} s; "
            "it is tried again, and `docker rm -f` there shows what stands in the way"
        )


def _ask_to_stop(client: Client, container_id: str) -> timedelta | None:
    """Tell the container to stop, under its teardown's name. Returns the grace to wait, None where there is none, or it
    could not be told.
    """
    found = client.inspect_container(container_id)
    labels = found["Config"].get("Labels") or {}
    if not is_stopping(found["Name"]):
        _rename(client, container_id, stopping_name(labels.get(AGENT_ID, container_id)))
    granted = stop_grace(labels)
    state = found["State"]
    if not state.get("Running") or state.get("Paused") or not granted:
        return None
    for signal in dict.fromkeys((found["Config"].get("StopSignal") or "SIGTERM", "SIGTERM")):
        refused = _refused_signal(client, container_id, signal)
        if refused is None:
            return granted
        if refused.not_running:
            return None
        log.warning("container_not_signalled", container_id=container_id, signal=signal, error=str(refused))
    return None


def _refused_signal(client: Client, container_id: str, signal: str) -> EngineRefused | None:
    """Send it. What the engine said where it would not: an image may name a signal that there is not, and no refusal
    of one may keep the container from being removed. Raises what means that the engine did not answer.
    """
    try:
        client.kill(container_id, signal=signal)
    except Exception as e:
        status = getattr(e, "status_code", None)
        refused = EngineRefused("stop a container", status or 0, str(getattr(e, "explanation", None) or e))
        if status is None or refused.not_found:
            raise
        return refused
    return None


def _rename(client: Client, container_id: str, name: str) -> None:
    try:
        client.rename(container_id, name)
    except Exception as e:  # the name is only for the watch; the teardown itself must not fail by it
        if EngineRefused("rename", getattr(e, "status_code", None) or 0, str(e)).not_found:
            raise
        log.warning("container_not_renamed", container_id=container_id, error=str(e))


def _runs(client: Client, container_id: str) -> bool:
    return bool(client.inspect_container(container_id)["State"].get("Running"))
