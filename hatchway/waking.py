"""Tell workflows that the line has something for them: a slot, or the news that their place in it is void.

The slot is theirs already, in the database. Whoever freed the room signals, once it has committed; what a signal does
not reach is found by the next sweep. Client code only: commands use it as well as activities.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from hatchway.model import GrantedRequest
from hatchway.store.rows import Wake
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line

RPC_LIMIT = timedelta(seconds=5)


async def wake(temporal: Client, slots: Slots, grants: Iterable[Wake]) -> int:
    """Signal each, in the order of the line. A workflow that is gone gives its grant back, and the next one is told.

    Returns how many were reached. Raises RPCError when Temporal does not answer: those behind are not told then, but
    what they were given stays theirs. Raises StoreUnreachable and StoreContended.
    """
    reached = 0
    pending = list(grants)
    while pending:
        grant = pending.pop(0)
        try:
            await temporal.get_workflow_handle(grant.workflow_id).signal(
                "granted", GrantedRequest(agent_id=grant.agent_id), rpc_timeout=RPC_LIMIT
            )
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
            pending += (await slots.returned(grant.agent_id)).wake
        else:
            reached += 1
    return reached


async def wake_all(temporal: Client, slots: Slots, line: Line, grants: Iterable[Wake]) -> int:
    """The same, and whoever else has a grant that nobody told it of: one answer of the store names a hundred at most.

    For those who may open much room at once, as an apply of a configuration does.
    """
    reached = await wake(temporal, slots, grants)
    while more := await line.pump():
        reached += await wake(temporal, slots, more)
    return reached
