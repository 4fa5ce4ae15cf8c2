"""One round of a teardown, on the queue of the host where the compute is. Both workflows that tear down take it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from activities.compute import ComputeActivities
from activities.models import TeardownInput, TornDown
from hatchway.model import ScaleDownReason, TeardownFacts
from hatchway.task_queues import host_queue
from workflows.steps import HEARTBEAT_TIMEOUT, TEARDOWN_RETRY, call_off, last_words, nobody_took_it


@dataclass(frozen=True)
class Round:
    """`torn` when the compute is gone or its teardown was accepted; else `error`, or neither when it was forgotten."""

    torn: TornDown | None = None
    error: str | None = None


async def tear_down_round(
    agent_id: str,
    facts: TeardownFacts,
    reason: ScaleDownReason,
    *,
    number: int,
    limit: timedelta,
    forgotten: Callable[[], bool],
) -> Round:
    """Destroy, with retries, within `limit`; or stop waiting as soon as an operator says that it is gone."""
    queue = host_queue(facts.host_id)
    destroying = asyncio.create_task(
        workflow.execute_activity_method(
            ComputeActivities.teardown,
            TeardownInput(agent_id=agent_id, facts=facts, reason=reason),
            task_queue=queue,
            schedule_to_close_timeout=limit,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=TEARDOWN_RETRY,
            summary=f"tear down on {queue}, round {number}",
        )
    )
    await workflow.wait_condition(lambda: destroying.done() or forgotten())
    if not destroying.done():
        call_off(destroying)
        return Round()
    try:
        return Round(torn=destroying.result())
    except ActivityError as e:
        return Round(error=f"nobody polls host {facts.host_id}" if nobody_took_it(e) else last_words(e))
