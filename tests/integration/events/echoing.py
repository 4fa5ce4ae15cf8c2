"""A customer's workflow that fails with the words that a test gives it: as the job's id, which it is handed."""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError


@workflow.defn(name="ScaleUp")
class EchoingScaleUp:
    @workflow.run
    async def run(self, event: dict[str, Any]) -> None:
        raise ApplicationError(str(event["jobId"]), non_retryable=True)
