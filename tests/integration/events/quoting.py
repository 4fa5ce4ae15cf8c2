"""A customer's workflow that fails with everything that it was given: to see what Hatchway makes of such words."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from examples.customer_workflows.activities import ProvisioningActivities


@workflow.defn(name="ScaleUp")
class QuotingScaleUp:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        await workflow.execute_activity_method(
            ProvisioningActivities.boot, event, start_to_close_timeout=timedelta(seconds=30)
        )
        raise ApplicationError(f"failed with {json.dumps(event)}", non_retryable=True)
