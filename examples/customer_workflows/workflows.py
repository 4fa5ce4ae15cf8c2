"""The two workflows that Hatchway starts: `scale-up/<agent id>` and `scale-down/<agent id>`.

Their ends are what Hatchway goes by. ScaleUp completes: the agent is on its way, and has to register in time. It fails:
so does the provision, and its page shows the failure's message. ScaleDown completes: the machine is gone, and its slot
is given to the next. It fails: Hatchway starts it again, for ever.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from examples.customer_workflows.activities import ProvisioningActivities

LIMIT = timedelta(seconds=60)


@workflow.defn
class ScaleUp:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        """Boot the agent. Cancelled, which Hatchway does when it is not wanted any more, leave nothing behind."""
        try:
            await workflow.execute_activity_method(
                ProvisioningActivities.boot,
                event,
                start_to_close_timeout=LIMIT,
                retry_policy=RetryPolicy(maximum_attempts=3),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=f"boot {event['agentId']}",
            )
        except (ActivityError, asyncio.CancelledError) as e:
            # The latter when the cancel comes together with the boot's own success: the machine is there all the same.
            if is_cancelled_exception(e):
                await _delete(event)
            raise
        if workflow.cancellation_reason() is not None:  # it came while the boot was ending
            await _delete(event)
            raise asyncio.CancelledError


@workflow.defn
class ScaleDown:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        """Delete the agent's machine. Done when there is none."""
        await _delete(event)


async def _delete(event: dict[str, Any]) -> None:
    await asyncio.shield(
        workflow.execute_activity_method(
            ProvisioningActivities.delete,
            event,
            start_to_close_timeout=LIMIT,
            summary=f"delete {event['agentId']}",
        )
    )


ALL = [ScaleUp, ScaleDown]
