"""Calls to a customer's Temporal server, and what its answers mean. Nothing of theirs is quoted at length."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOut
from temporalio.service import RPCError, RPCStatusCode

from hatchway.backends.errors import quoted
from hatchway.backends.event_targets import TemporalTarget
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.events import ScaleDown, ScaleUp
from hatchway.secrets.secret import Secret

T = TypeVar("T")

RPC_LIMIT = timedelta(seconds=5)
LOOK_EVERY = 5.0
SERVER_AWAY_PAUSE = 1.0
"""Seconds, both of them."""

MOST_WORDS = 500
"""Characters of a customer's own failure that are shown."""

_AWAY = frozenset(
    {
        RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED, RPCStatusCode.ABORTED,
        RPCStatusCode.INTERNAL, RPCStatusCode.UNKNOWN, RPCStatusCode.RESOURCE_EXHAUSTED,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A Temporal target, and the client that reaches it."""

    target: TemporalTarget
    client: Client
    api_key: Secret | None = None
    """What the client shows to the server. A proxy's or a server's refusal may quote it."""
    secret_values: frozenset[str] = field(repr=False, default=frozenset())
    """Whatever else their side may know and quote: those of the spawn that asks them."""

    def handle(self, workflow_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(workflow_id)


async def start(
    place: Place, workflow_id: str, event: ScaleUp | ScaleDown, reuse: WorkflowIDReusePolicy
) -> WorkflowHandle[Any, Any]:
    handle: WorkflowHandle[Any, Any] = await reported(
        place,
        place.client.start_workflow(
            place.target.workflow_type,
            json.loads(event.to_json()),
            id=workflow_id,
            task_queue=place.target.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=reuse,
            static_summary=f"{event.name.value} for {event.scaler_name}",
            memo={"event": event.name.value, "requestId": event.request_id},
            rpc_timeout=RPC_LIMIT,
        ),
    )
    return handle


async def end_of(place: Place, handle: WorkflowHandle[Any, Any], limit: timedelta, say: Callable[[str], None]) -> None:
    """Wait for the end, through outages of its server. Raises WorkflowFailureError, SpawnError when it is too slow."""
    loop = asyncio.get_running_loop()
    ends_at, known = loop.time() + limit.total_seconds(), "nothing is known of it yet"
    while (left := ends_at - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, LOOK_EVERY)):
                await handle.result()
            return
        except TimeoutError:
            known = await _what_it_waits_for(place, handle)
            say(f"{handle.id} in namespace {place.target.namespace}: {known}")
        except RPCError as e:
            if e.status not in _AWAY:
                raise _of_rpc(place, e) from None
            known = f"its server does not answer ({e.status.name.lower()})"
            say(f"{handle.id} in namespace {place.target.namespace}: {known}")
            await asyncio.sleep(SERVER_AWAY_PAUSE)
    raise TransientSpawnError(
        SpawnCode.DAEMON_UNAVAILABLE,
        f"the workflow {handle.id} in namespace {place.target.namespace} had not ended after "
        f"{limit.total_seconds():g} s: {known}",
    )


async def _what_it_waits_for(place: Place, handle: WorkflowHandle[Any, Any]) -> str:
    """For people: the activity that keeps failing, or the queue that nobody polls."""
    try:
        found = await described(handle)
        if found is None:
            return "it is not there any more"
        for pending in found.raw_description.pending_activities:
            if pending.HasField("last_failure"):
                words = _said(place, pending.last_failure.message, pending.last_failure)
                return (
                    f"its activity {_short(place, pending.activity_type.name)} is at attempt {pending.attempt}: {words}"
                )
        if found.raw_description.HasField("pending_workflow_task"):
            return f"no worker has taken it from the task queue {place.target.task_queue}"
    except RPCError as e:
        return f"its server does not answer ({e.status.name.lower()})"
    return "it is under way"


async def described(handle: WorkflowHandle[Any, Any]) -> WorkflowExecutionDescription | None:
    """None: there is no such workflow. Raises RPCError."""
    try:
        return await handle.describe(rpc_timeout=RPC_LIMIT)
    except RPCError as e:
        if e.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None


async def reported(place: Place, call: Awaitable[T]) -> T:
    """The call's answer. Raises SpawnError instead of RPCError."""
    try:
        return await call
    except RPCError as e:
        raise _of_rpc(place, e) from None


def _of_rpc(place: Place, error: RPCError) -> SpawnError:
    """What the customer's server's refusal means."""
    where = f"the Temporal server of namespace {place.target.namespace}"
    words = f"{where} refused: {_short(place, error.message)}"
    match error.status:
        case RPCStatusCode.RESOURCE_EXHAUSTED:
            return TransientSpawnError(SpawnCode.RATE_LIMITED, f"{where} limits how often it is asked")
        case status if status in _AWAY:
            return TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"{where} does not answer ({status.name.lower()})")
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return PermanentSpawnError(SpawnCode.AUTH_DENIED, words)
        case _:
            return PermanentSpawnError(SpawnCode.INVALID_SPEC, words)


def innermost(error: WorkflowFailureError) -> BaseException | None:
    """The failure that has the reason: an activity's, or a child's, stands inside of others."""
    cause: BaseException | None = error.cause
    while isinstance(cause, FailureError) and isinstance(cause.cause, FailureError):
        cause = cause.cause
    return cause


def words_of(place: Place, error: WorkflowFailureError) -> str:
    match error.cause, innermost(error):
        case CancelledError(), _:
            return "was cancelled"
        case TerminatedError() as e, _:
            return f"was terminated: {_short(place, str(e))}"
        case TimedOut(), _:
            return "ran into a timeout of its own"
        case _, ApplicationError() as e:
            return f"failed: {_said(place, e.message, e.failure)}"
        case _, cause:
            return f"failed: {_short(place, str(cause))}"


def _said(place: Place, message: str, failure: Failure | None) -> str:
    if failure is not None and failure.HasField("encoded_attributes") and message == failure.message:
        return "why, only their own codec can read; its page in their namespace shows it"
    return _short(place, message)


def _short(place: Place, text: str) -> str:
    """A customer's words in one line, and not too many."""
    return quoted(text, MOST_WORDS, {*place.secret_values, *([place.api_key.reveal()] if place.api_key else [])})
