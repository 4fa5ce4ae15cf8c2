"""Warm pools, seen from a client of Temporal: who looks after one, and what a fill starts."""

from __future__ import annotations

import structlog
from temporalio.client import Client
from temporalio.common import WorkflowIDReusePolicy
from temporalio.service import RPCError

from hatchway.client import HatchwayClient
from hatchway.config.schema import LabelSet, Scaler
from hatchway.model import OnCapacity, ProvisionRequest, WarmPoolRequest
from hatchway.task_queues import CONTROL
from hatchway.waking import RPC_LIMIT

log = structlog.get_logger(__name__)


async def look_after_pool(temporal: Client, scaler: str) -> None:
    """Have somebody look at this scaler's pool now, who looks again when told so meanwhile.

    Whoever calls this has something else to do that must not fail for it: what a lost call would have done, the next
    sweep does.
    """
    request = WarmPoolRequest(scaler=scaler)
    try:
        await temporal.start_workflow(
            "WarmPoolWorkflow",
            request,
            id=f"warm/{scaler}",
            task_queue=CONTROL,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            start_signal="look",
            start_signal_args=[request],
            static_summary=f"the warm pool of {scaler}",
            rpc_timeout=RPC_LIMIT,
        )
    except RPCError as e:
        log.warning("nobody was told to look after a warm pool; the sweep will", scaler=scaler, reason=e.message)


async def start_warm(temporal: Client, scaler: Scaler, label_set: LabelSet) -> None:
    """Start the provision of one agent for this scaler's pool. Its reserve judges whether there is room for it."""
    await HatchwayClient(temporal).provision(
        ProvisionRequest(labels=list(label_set.labels), warm_for=scaler.name, on_capacity=OnCapacity.DECLINE)
    )
