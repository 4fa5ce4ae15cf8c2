"""Tear an agent down without its provision: that one's workflow is gone, or nobody ever knew it.

Client code only: commands use it as well as activities.
"""

from __future__ import annotations

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from hatchway.model import EndReason, ForgetRequest, TeardownFacts, TeardownRequest
from hatchway.store.rows import SpawnRow
from hatchway.store.slots import Slots
from hatchway.task_queues import CONTROL
from hatchway.transitions import wire_reason
from hatchway.waking import RPC_LIMIT, wake

NOWHERE = "unknown"
"""The host of an agent that was never stamped with one."""


async def start_teardown(
    temporal: Client,
    agent_id: str,
    facts: TeardownFacts,
    end: EndReason,
    *,
    adopted: bool,
    forgotten: ForgetRequest | None = None,
) -> None:
    """Make sure that the agent's TeardownWorkflow runs. One that runs already goes on. `forgotten`: it hears that too,
    with its start, so that a worker that dies in between loses nothing.
    """
    await temporal.start_workflow(
        "TeardownWorkflow",
        TeardownRequest(agent_id=agent_id, facts=facts, reason=wire_reason(end, adopted=adopted), end_reason=end),
        id=f"teardown/{agent_id}",
        task_queue=CONTROL,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        start_signal="forget_compute" if forgotten else None,
        start_signal_args=[forgotten] if forgotten else [],
        static_summary=f"{agent_id} on host {facts.host_id}: {end.value}",
        rpc_timeout=RPC_LIMIT,
    )


async def tear_down(temporal: Client, slots: Slots, row: SpawnRow, end: EndReason) -> None:
    """Have the compute of a closing row destroyed. Without a host's stamp there is none: the slot is free at once."""
    facts = row.teardown_facts
    if facts is None:
        await wake(temporal, slots, (await slots.release(row.agent_id, end.value, None)).wake)
        return
    await start_teardown(temporal, row.agent_id, facts, end, adopted=row.adopted)


async def forget(temporal: Client, row: SpawnRow, by: str) -> None:
    """Free the slot of an agent that nobody tears down, on an operator's word. Who that was stands in its teardown."""
    await start_teardown(
        temporal,
        row.agent_id,
        row.teardown_facts or TeardownFacts(backend_type=row.backend_type or NOWHERE, host_id=NOWHERE),
        EndReason(row.end_reason) if row.end_reason else EndReason.OPERATOR,
        adopted=row.adopted,
        forgotten=ForgetRequest(agent_id=row.agent_id, by=by),
    )
