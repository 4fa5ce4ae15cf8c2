"""What AGENT on a command line means: an agent id, or the id of its workflow."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hatchway.cli.failures import Failure, failed

if TYPE_CHECKING:
    from hatchway.client import HatchwayClient
    from hatchway.store.pool import Database
    from hatchway.store.rows import OutcomeRow, SpawnRow

AGENT_ID = re.compile(r"^scaler-([0-9a-f]{32})$")
"""`scaler-` and the first run's id without its dashes."""


@dataclass(frozen=True)
class Target:
    """An agent, as far as the two servers know it. `row` is None without a slot, `outcome` before its end is near."""

    agent_id: str
    workflow_id: str | None
    row: SpawnRow | None
    outcome: OutcomeRow | None

    def workflow(self) -> str:
        """The workflow to address. Raises Failure when nobody knows it."""
        if self.workflow_id is None:
            raise failed("not_found", f"no workflow of agent {self.agent_id} is known: it may be past retention")
        return self.workflow_id


async def find(text: str, db: Database, client: HatchwayClient) -> Target:
    """The agent that `text` names. Raises Failure when neither Postgres nor Temporal knows it."""
    from hatchway.store.outcomes import Outcomes
    from hatchway.store.slots import Slots

    workflow_id: str | None = None
    # A row that was moved over from elsewhere may be called anything.
    if AGENT_ID.match(text) or await Slots(db).get(text) is not None:
        agent_id = text
    else:
        workflow_id = text
        agent_id = (await of_workflow(workflow_id, client)).agent_id
    row = await Slots(db).get(agent_id)
    outcome = await Outcomes(db).get(agent_id)
    workflow_id = (row.workflow_id if row else None) or workflow_id or await workflow_of(agent_id, client)
    if row is None and outcome is None and workflow_id is None:
        raise _unknown(text)
    return Target(agent_id, workflow_id, row, outcome)


async def workflow_of(agent_id: str, client: HatchwayClient) -> str | None:
    """The workflow of an agent without a row: one that waits in the line, or has ended. None past retention."""
    found = AGENT_ID.match(agent_id)
    if found is None:
        return None
    run_id = uuid.UUID(found.group(1))
    # An agent is named for the run that it was made by, and Temporal finds a run by its id.
    async for execution in client.temporal.list_workflows(f'RunId = "{run_id}"', limit=1):
        return execution.id
    return None


async def of_workflow(workflow_id: str, client: HatchwayClient) -> Target:
    """The agent of a workflow's latest run, by Temporal alone. Raises Failure when there is no such workflow."""
    from temporalio.service import RPCError, RPCStatusCode

    from hatchway.client import agent_id_of

    try:
        described = await client.temporal.get_workflow_handle(workflow_id).describe()
    except RPCError as e:
        if e.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise _unknown(workflow_id) from None
        raise
    return Target(agent_id_of(described.raw_description), workflow_id, None, None)


def _unknown(text: str) -> Failure:
    return failed("not_found", f"no agent and no workflow is called {text!r}: `hatchway list` shows what there is")
