"""Events to a customer's Temporal workflows: `scale-up/<agent id>` and `scale-down/<agent id>`, each awaited.

    scale-up   start, or join what an earlier attempt started ──► completed: the agent's compute has been asked for
                                                             └──► failed: so has the spawn, with its words
    scale-down   cancel scale-up and wait for its end ──► start, or join ──► completed: gone
                        ▲                                                  └─ failed, slow: tried again, for ever
                        └── scale-up ended only after scale-down had begun: that one may have looked too early

A completed scale-up is never started again, one that failed is. Nothing but JSON goes there: no codec and no key of
Hatchway's own namespace, which is never a target itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from hatchway.backends.event_temporal_calls import (
    RPC_LIMIT,
    Place,
    described,
    end_of,
    innermost,
    reported,
    start,
    words_of,
)
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.events import ScaleDown, ScaleUp
from hatchway.through_cancel import to_its_end

SCALE_DOWN_S = 20.0
"""How long one attempt of a teardown waits, or a little less than it has: so that it ends with our words."""
WORDS_S = 2.0
"""What is left of an attempt for asking what a scale-down waits for, and saying it."""
CALL_OFF_S = 5.0
"""Seconds, both of them. For a scale-up that was cancelled to clean up after itself, before others go on."""
ROUNDS = 3
"""Scale-downs of one attempt, where a scale-up keeps ending after they began."""

_TRANSIENT = frozenset(
    {SpawnCode.CAPACITY, SpawnCode.QUOTA, SpawnCode.RATE_LIMITED, SpawnCode.DAEMON_UNAVAILABLE, SpawnCode.DISK_FULL}
)
"""Types of ApplicationError by which a customer's workflow says that the next attempt may do better."""


def scale_up_id(agent_id: str) -> str:
    return f"scale-up/{agent_id}"


def scale_down_id(agent_id: str) -> str:
    return f"scale-down/{agent_id}"


# ── scale-up ────────────────────────────────────────────────────────────────────────────────────────────────────


async def scale_up(
    place: Place, event: ScaleUp, limit: timedelta, say: Callable[[str], None], emitted: Callable[[], None]
) -> None:
    """Return once the customer's workflow has completed. Raises SpawnError, also when that takes more than `limit`.

    Cancelled, it leaves that workflow alone, for whoever takes the agent up, or tears it down.
    """
    workflow_id = scale_up_id(event.agent_id)
    starting = start(place, workflow_id, event, WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY)
    try:
        # A start on its way to the server would come after the teardown's cancel, and stand.
        handle = await to_its_end(starting)
        emitted()
        say(f"{workflow_id} was started in namespace {place.target.namespace}")
        await end_of(place, handle, limit, say)
    except WorkflowAlreadyStartedError:
        return  # an earlier attempt's, which has completed since
    except WorkflowFailureError as e:
        raise _spawn_failure(place, workflow_id, e) from None


def _spawn_failure(place: Place, workflow_id: str, error: WorkflowFailureError) -> SpawnError:
    words = f"the workflow {workflow_id} in namespace {place.target.namespace} {words_of(place, error)}"
    said = innermost(error)
    code = SpawnCode.PROVISIONER_FAILED
    if isinstance(said, ApplicationError) and said.type in set(SpawnCode):
        code = SpawnCode(said.type)
    if code in _TRANSIENT:
        return TransientSpawnError(code, words)
    return PermanentSpawnError(code, words)


async def _call_off(place: Place, agent_id: str) -> bool:
    """Cancel scale-up and wait until it has ended, for a moment. Whether it has, or never was."""
    handle = place.handle(scale_up_id(agent_id))
    try:
        async with asyncio.timeout(CALL_OFF_S):
            while True:
                found = await described(handle)
                if found is None or found.status is not WorkflowExecutionStatus.RUNNING:
                    return True
                await _cancel(handle)
                await asyncio.sleep(0.1)
    except TimeoutError:
        return False
    except RPCError:
        return False  # its server is away: the next attempt asks again


async def _cancel(handle: WorkflowHandle[Any, Any]) -> None:
    try:
        await handle.cancel(rpc_timeout=RPC_LIMIT, reason="the agent is not wanted any more")
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
            raise


# ── scale-down ──────────────────────────────────────────────────────────────────────────────────────────────────


async def scale_down(
    up: Place | None, down: Place, event: ScaleDown, emitted: Callable[[], None], *, ends_at: float
) -> None:
    """Return once the customer has confirmed that the compute is gone. Raises SpawnError while that is not so.

    `up`: where its scale-up went, if to Temporal too. `ends_at`: when this attempt is over, by the loop's clock.
    """
    for _ in range(ROUNDS):
        if up is not None and not await _call_off(up, event.agent_id):
            await _run_scale_down(down, event, emitted, ends_at)  # it may know how to end the other
            if not await _call_off(up, event.agent_id):
                break
        if not await _confirmed(down, event.agent_id, since=await _closed_at(up, event.agent_id)):
            await _run_scale_down(down, event, emitted, ends_at)
        if await _confirmed(down, event.agent_id, since=await _closed_at(up, event.agent_id)):
            return
    raise TransientSpawnError(
        SpawnCode.PROVISIONER_FAILED,
        f"{scale_down_id(event.agent_id)} has completed, and {scale_up_id(event.agent_id)} in namespace "
        f"{down.target.namespace} still runs, or ended later: it may have booted a machine that was not looked for",
    )


async def call_off(up: Place, agent_id: str) -> None:
    """For a scale-down that goes elsewhere: return once its scale-up has ended. Raises SpawnError while it runs."""
    if not await _call_off(up, agent_id):
        raise TransientSpawnError(
            SpawnCode.PROVISIONER_FAILED,
            f"{scale_up_id(agent_id)} in namespace {up.target.namespace} was cancelled and still runs, or its server "
            "does not answer: it may boot a machine yet",
        )


async def _run_scale_down(down: Place, event: ScaleDown, emitted: Callable[[], None], ends_at: float) -> None:
    workflow_id = scale_down_id(event.agent_id)
    handle = await start(down, workflow_id, event, WorkflowIDReusePolicy.ALLOW_DUPLICATE)
    emitted()
    left = ends_at - asyncio.get_running_loop().time() - WORDS_S
    try:
        await end_of(down, handle, timedelta(seconds=max(0.5, min(SCALE_DOWN_S, round(left, 1)))), _silent)
    except WorkflowFailureError as e:
        raise TransientSpawnError(
            SpawnCode.PROVISIONER_FAILED,
            f"the workflow {workflow_id} in namespace {down.target.namespace} {words_of(down, e)}",
        ) from None


def _silent(message: str) -> None:
    """A teardown has no progress to tell."""


async def _confirmed(down: Place, agent_id: str, *, since: datetime | None) -> bool:
    """Whether a scale-down has completed that began no earlier than `since`."""
    found = await reported(down, described(down.handle(scale_down_id(agent_id))))
    if found is None or found.status is not WorkflowExecutionStatus.COMPLETED:
        return False
    return since is None or found.start_time >= since


async def _closed_at(up: Place | None, agent_id: str) -> datetime | None:
    """When its scale-up ended; None when there was none. One that runs ends now, at the earliest."""
    if up is None:
        return None
    found = await reported(up, described(up.handle(scale_up_id(agent_id))))
    return None if found is None else found.close_time or datetime.now(UTC)


async def stands(place: Place, agent_id: str) -> bool:
    """Whether its scale-up has completed, and no scale-down since."""
    up = await reported(place, described(place.handle(scale_up_id(agent_id))))
    if up is None or up.status is not WorkflowExecutionStatus.COMPLETED:
        return False
    return not await _confirmed(place, agent_id, since=up.close_time)
