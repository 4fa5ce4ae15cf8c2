"""One round of a teardown, on the queue of the host where the compute is. Both workflows that tear down take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.models import TeardownInput, TornDown
from activities.teardown import TeardownActivities
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ScaleDownReason, TeardownFacts
from hatchway.task_queues import host_queue
from workflows.steps import HEARTBEAT_TIMEOUT, TEARDOWN_RETRY, call_off, last_words, nobody_took_it

AWAY = frozenset({ErrorType.STORE_UNREACHABLE, ErrorType.CAP_LOCK_CONTENDED})


@dataclass(frozen=True)
class Round:
    """`torn` when the compute is gone or its teardown was accepted; else `error`, or neither when it was forgotten.

    `store_away`: the database did not answer what was asked of it with the same step. Of the backend that says nothing.
    """

    torn: TornDown | None = None
    error: str | None = None
    store_away: bool = False


async def tear_down_round(
    agent_id: str,
    facts: TeardownFacts,
    reason: ScaleDownReason,
    *,
    number: int,
    limit: timedelta,
    forgotten: Callable[[], bool],
    final_end: EndReason | None = None,
) -> Round:
    """Destroy, with retries, within `limit`; or stop waiting as soon as an operator says that it is gone.

    `final_end`: the same step also closes before and releases after, with this end.
    """
    queue = host_queue(facts.host_id)
    destroying = asyncio.create_task(
        workflow.execute_activity_method(
            TeardownActivities.teardown,
            TeardownInput(agent_id=agent_id, facts=facts, reason=reason, final_end=final_end),
            task_queue=queue,
            schedule_to_close_timeout=limit,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=TEARDOWN_RETRY,
            summary=f"tear down on {queue}, round {number}" + (", and close and release" if final_end else ""),
        )
    )
    await workflow.wait_condition(lambda: destroying.done() or forgotten())
    if not destroying.done():
        call_off(destroying)
        return Round()
    try:
        return Round(torn=destroying.result())
    except ActivityError as e:
        if isinstance(e.cause, ApplicationError) and e.cause.type in AWAY:
            return Round(error=last_words(e), store_away=True)
        return Round(error=f"nobody polls host {facts.host_id}" if nobody_took_it(e) else last_words(e))
