"""What the gateway asks of a provision's workflow: to adopt an agent, and to hear that it completed.

Workflow ids are per job, agents are not: another run for the same job must never be addressed. The first run's id pins
the chain (a reset keeps it, a run id would not), and every message names its agent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count

import structlog
from pydantic import ConfigDict
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from hatchway.codec import PayloadKeyMissing
from hatchway.errors import ErrorType, HatchwayError
from hatchway.gateway.errors import TemporalUnreachable
from hatchway.model import AdoptedSpec, AdoptRequest, ReleaseRequest, TeardownRequest
from hatchway.task_queues import CONTROL

CLOSED_UNDER_THE_UPDATE = "AcceptedUpdateCompletedWorkflow"
"""The server's type for an update whose workflow ended while the handler ran."""
NOT_OURS = {RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.OUT_OF_RANGE}
"""A call that repeating cannot mend. Everything else (a busy, restarting, unauthorized server) is an outage."""

log = structlog.get_logger(__name__)


class Adopted(AdoptedSpec):
    """An AdoptedSpec as a newer worker may answer it: what is not known here is left out."""

    model_config = ConfigDict(extra="ignore")


class ProvisionGone(HatchwayError):
    """No open workflow runs this provision."""


class AdoptionRefused(HatchwayError):
    """The provision answered, and does not take this agent process. `error_type` says why."""

    def __init__(self, error_type: ErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


class Provisions:
    """Provision workflows, as the gateway sees them. Raises TemporalUnreachable after `patience` without an answer."""

    def __init__(self, client: Client, patience: timedelta, task_queue: str = CONTROL) -> None:
        self._client = client
        self._patience = patience
        self._task_queue = task_queue
        # Temporal answers a repeated update id with the first answer, refusals included, so an id is used once: the
        # counter tells this process's attempts apart, the random part tells gateways apart.
        self._process = secrets.token_hex(4)
        self._attempts = count(1)

    async def adopt(self, workflow_id: str, first_run_id: str, request: AdoptRequest) -> AdoptedSpec:
        """Have the workflow adopt the agent. Raises AdoptionRefused, or ProvisionGone when no such run is open."""
        handle = self._client.get_workflow_handle(workflow_id, first_execution_run_id=first_run_id)
        update_id = f"{request.registration_id}.{self._process}.{next(self._attempts)}"
        try:
            async with self._answered("adopt"):
                spec: AdoptedSpec = await handle.execute_update(
                    "adopt", request, id=update_id, result_type=Adopted, rpc_timeout=self._patience
                )
        except WorkflowUpdateFailedError as e:
            raise _adoption_failure(e) from e
        return spec

    async def completed(self, workflow_id: str, first_run_id: str, request: ReleaseRequest) -> None:
        """Tell the workflow that a completion has been committed. Raises ProvisionGone when no such run is open."""
        # A signal cannot be pinned to a chain, only to a run. Looking the run up first costs no action, and a reset
        # between the two shows as "not found": look again.
        for _ in range(3):
            run_id = await self._open_run(workflow_id, first_run_id)
            handle = self._client.get_workflow_handle(workflow_id, run_id=run_id)
            try:
                async with self._answered("the release signal"):
                    await handle.signal("release", request, rpc_timeout=self._patience)
                return
            except ProvisionGone:
                continue
        raise ProvisionGone(f"workflow {workflow_id} closed while it was told of the completion")

    async def tear_down(self, request: TeardownRequest) -> None:
        """Have the agent torn down without its provision. Once at a time: a running teardown is left to run."""
        async with self._answered("the start of a teardown"):
            await self._client.start_workflow(
                "TeardownWorkflow",
                request,
                id=f"teardown/{request.agent_id}",
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"completed, and its provision is gone: {request.agent_id}",
                rpc_timeout=self._patience,
            )

    async def ping(self) -> None:
        """Raise TemporalUnreachable unless the server answers."""
        async with self._answered("a health check"):
            if not await self._client.service_client.check_health(timeout=self._patience):
                raise TemporalUnreachable("Temporal says of itself that it is not serving")

    async def _open_run(self, workflow_id: str, first_run_id: str) -> str:
        async with self._answered("a look at the workflow"):
            description = await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=self._patience)
        first = description.raw_description.workflow_execution_info.first_run_id
        other = first and first != first_run_id  # older servers leave it out
        if description.status != WorkflowExecutionStatus.RUNNING or other:
            raise ProvisionGone(f"workflow {workflow_id} is closed, or is another run's by now")
        return description.run_id

    @asynccontextmanager
    async def _answered(self, what: str) -> AsyncIterator[None]:
        """Translate the ways in which a call can end without an answer.

        `rpc_timeout` bounds one attempt only; the client repeats attempts by itself, so the whole is bounded as well.
        """
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                yield
        except RPCError as e:
            if e.status == RPCStatusCode.NOT_FOUND:
                raise ProvisionGone(f"Temporal knows no open workflow for {what}") from e
            if e.status in NOT_OURS:
                raise
            raise TemporalUnreachable(f"Temporal did not take {what}: {e.status.name}, {e.message}") from e
        except PayloadKeyMissing as e:  # the agent asks again, and is answered once the key is there
            raise TemporalUnreachable(f"the answer to {what} cannot be read here: {e}") from None
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as e:
            seconds = self._patience.total_seconds()
            raise TemporalUnreachable(f"no answer to {what} within {seconds:g} s: is a worker running?") from e


def _adoption_failure(e: WorkflowUpdateFailedError) -> HatchwayError:
    cause = e.cause
    if not isinstance(cause, ApplicationError):
        log.error("gateway_adopt_failed", cause=type(cause).__name__)
        return TemporalUnreachable("the provision's workflow could not adopt the agent now")
    if cause.type == CLOSED_UNDER_THE_UPDATE:
        return ProvisionGone("the provision closed while it adopted the agent")
    if cause.type in (ErrorType.NO_SUCH_PROVISION, ErrorType.TEARING_DOWN, ErrorType.ADOPTED_BY_OTHER):
        return AdoptionRefused(ErrorType(cause.type), cause.message)
    # The activity behind it gave up: the store was away, for instance. The agent may ask again.
    log.error("gateway_adopt_failed", cause=cause.type or "untyped")
    return TemporalUnreachable("the provision's workflow could not adopt the agent now")
