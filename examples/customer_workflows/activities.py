"""What the workflows do to machines. The claim code is opened here, used here, and answered to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from examples.customer_workflows.machines import Machines, Unwanted
from hatchway.events import ScaleDown, ScaleUp
from hatchway.sealed_claims import CannotOpenClaim, open_claim


class ProvisioningActivities:
    def __init__(self, machines: Machines, claim_keys: Sequence[str]) -> None:
        """`claim_keys`: the private key; several while it is being replaced, the newest first."""
        self._machines = machines
        self._claim_keys = tuple(claim_keys)

    @activity.defn
    async def boot(self, event: dict[str, Any]) -> None:
        """Boot one agent for a ScaleUp. Answers nothing: an answer would lie in history."""
        wanted = ScaleUp.model_validate(event)
        try:
            claim_code = open_claim(wanted.claim_code, self._claim_keys, wanted.agent_id)
            await asyncio.to_thread(self._machines.boot, wanted, claim_code)
        except (CannotOpenClaim, Unwanted) as e:
            raise ApplicationError(str(e), type=type(e).__name__, non_retryable=True) from None

    @activity.defn
    async def delete(self, event: dict[str, Any]) -> None:
        """Delete the agent of a ScaleDown or a ScaleUp; one that is not there is deleted."""
        agent_id = ScaleDown.model_validate(event).agent_id if "reason" in event else str(event["agentId"])
        await asyncio.to_thread(self._machines.delete, agent_id)
