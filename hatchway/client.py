"""Start provisions and follow them, from any process that can reach the Temporal namespace.

    temporal = await connect()
    hatchway = HatchwayClient(temporal)
    started = await hatchway.provision(ProvisionRequest(labels=["linux"], job_id="build-7", run_id="run-3"))
    spec = await hatchway.wait_adopted(started)

One job that is offered a hundred times is one provision: the workflow id is the job's, a second start joins the first,
and a job that has been served is not served again. Imports neither workflows nor activities.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError, WorkflowAlreadyStartedError
from temporalio.plugin import SimplePlugin
from temporalio.service import RPCError, RPCStatusCode

from hatchway.converter import converter_from
from hatchway.errors import ErrorType, HatchwayError
from hatchway.model import (
    AdoptedSpec,
    EndReason,
    ForgetRequest,
    ProvisionOutcome,
    ProvisionRequest,
    ProvisionStatus,
    ReleaseRequest,
    StatusRequest,
    WaitRequest,
)
from hatchway.task_queues import CONTROL

RPC_LIMIT = timedelta(seconds=10)
QUERY_LIMIT = timedelta(seconds=20)
"""A query waits for the workflow task that is under way. One that a killed worker had is given up after 10 s, and the
next one may take a step of 2 s itself."""
CONNECT_S = 5.0
"""As long as for Postgres. The SDK itself waits 30 s for a server that swallows packets; a refusal is known at once."""

NAMES_FIRST_RUNS = (1, 32)
"""The server's version from which a start's answer names the first run of the execution that it joined."""

CLOSED_UNDER_THE_UPDATE = "AcceptedUpdateCompletedWorkflow"
"""The server's type for an update whose workflow was terminated while the handler waited."""


class TemporalUnreachable(HatchwayError):
    """The Temporal server did not answer. Says its address."""


class ProvisionFailed(HatchwayError):
    """The provision has ended without serving the job. `error_type` is an `ErrorType`, `detail` its first detail."""

    def __init__(self, message: str, error_type: str, detail: str | None = None, *, cancelled: bool = False) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.detail = detail
        self.cancelled = cancelled

    @property
    def declined(self) -> bool:
        """There was no agent to be had now; the job may be offered again."""
        return self.error_type == ErrorType.DECLINED


@dataclass(frozen=True)
class Started:
    """A provision that runs, or has run: `joined` when the job had been served before, by this closed run."""

    workflow_id: str
    run_id: str
    agent_id: str
    joined: bool = False


def plugin() -> SimplePlugin:
    """Converter only: what every process that speaks with Hatchway's workflows has in common.

    Raises PayloadKeysError, where HATCHWAY_PAYLOAD_KEYS names a file that cannot be used.
    """
    return SimplePlugin("hatchway", data_converter=converter_from())


async def connect(**overrides: Any) -> Client:
    """A client from Temporal's own environment and profiles (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, …).

    Raises TemporalUnreachable, and PayloadKeysError.
    """
    config: dict[str, Any] = {**ClientConfig.load_client_connect_config(), **overrides}
    config.setdefault("target_host", "localhost:7233")
    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(**config, plugins=[plugin()])
    except TimeoutError:
        raise TemporalUnreachable(
            f"Temporal did not answer at {config['target_host']} within {CONNECT_S:g} s: is TEMPORAL_ADDRESS right?"
        ) from None
    except RuntimeError as e:
        raise TemporalUnreachable(
            f"Temporal does not answer at {config['target_host']}; start it, or set TEMPORAL_ADDRESS ({_short(e)})"
        ) from None


class HatchwayClient:
    def __init__(self, temporal: Client) -> None:
        self.temporal = temporal
        self._first_runs: bool | None = None

    async def provision(self, request: ProvisionRequest, *, workflow_id: str | None = None) -> Started:
        """Start the provision of one agent, or join the one that this job has.

        A job that was served already is answered with that closed run; `outcome` then gives what came of it.
        """
        workflow_id = workflow_id or workflow_id_for(request)
        try:
            handle: WorkflowHandle[Any, Any] = await self.temporal.start_workflow(
                "ProvisionWorkflow",
                request,
                id=workflow_id,
                task_queue=CONTROL,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                static_summary=summary_of(request),
                rpc_timeout=RPC_LIMIT,
            )
        except WorkflowAlreadyStartedError:
            closed = await self.temporal.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_LIMIT)
            return Started(workflow_id, closed.run_id, agent_id_of(closed.raw_description), joined=True)
        run_id, first = handle.result_run_id, handle.first_execution_run_id
        if run_id and first and await self._names_first_runs():
            return Started(workflow_id, run_id, agent_id_for(first))
        described = await handle.describe(rpc_timeout=RPC_LIMIT)
        return Started(workflow_id, described.run_id, agent_id_of(described.raw_description))

    async def wait_adopted(self, started: Started) -> AdoptedSpec:
        """Wait until an agent is adopted. Raises ProvisionFailed when the provision ends first."""
        handle = self._handle(started)
        try:
            spec: AdoptedSpec = await handle.execute_update("wait_adopted", WaitRequest(), result_type=AdoptedSpec)
        except WorkflowUpdateFailedError as e:
            if getattr(e.cause, "type", None) != CLOSED_UNDER_THE_UPDATE:
                raise _failed(e.cause or e) from None
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:
                raise
        else:
            return spec
        if moved := await self._reset_to(started):
            return await self.wait_adopted(moved)
        outcome = await self.outcome(started)  # raises what a provision that served nobody ended with
        raise ProvisionFailed(
            f"the provision is over already: {outcome.end_reason.value}, its job {outcome.result.value}",
            ErrorType.JOB_SERVED,
        )

    async def outcome(self, started: Started) -> ProvisionOutcome:
        """Wait for the end, and answer it. Raises ProvisionFailed for every end but a served job."""
        try:
            outcome: ProvisionOutcome = await self.temporal.get_workflow_handle(
                started.workflow_id, run_id=started.run_id, result_type=ProvisionOutcome
            ).result()
        except WorkflowFailureError as e:
            if isinstance(e.cause, TerminatedError) and (moved := await self._reset_to(started)):
                return await self.outcome(moved)
            raise _failed(e.cause) from None
        return outcome

    async def _reset_to(self, started: Started) -> Started | None:
        """The run that goes on with this agent after a reset, which terminates the run before it."""
        latest = await self.temporal.get_workflow_handle(started.workflow_id).describe(rpc_timeout=RPC_LIMIT)
        if latest.run_id == started.run_id or agent_id_of(latest.raw_description) != started.agent_id:
            return None
        return replace(started, run_id=latest.run_id)

    async def status(self, workflow_id: str) -> ProvisionStatus:
        """What it is doing, since when, for whom it waits."""
        handle = self.temporal.get_workflow_handle(workflow_id)
        status: ProvisionStatus = await handle.query(
            "status", StatusRequest(), result_type=ProvisionStatus, rpc_timeout=QUERY_LIMIT
        )
        return status

    async def release(
        self,
        workflow_id: str,
        agent_id: str,
        *,
        reason: EndReason = EndReason.RELEASED,
        by: str | None = None,
        now: bool = False,
    ) -> None:
        """Let the agent go. A busy one finishes its job first, unless `now`."""
        await self.temporal.get_workflow_handle(workflow_id).signal(
            "release",
            ReleaseRequest(agent_id=agent_id, reason=reason, by=by or whoami(), now=now),
            rpc_timeout=RPC_LIMIT,
        )

    async def cancel(self, workflow_id: str, reason: str = "", *, run_id: str | None = None) -> None:
        """Ask the provision to end now, busy or not; it tears its compute down first.

        Without `run_id` whichever run stands there: a job that was offered again has another agent by then.
        """
        await self.temporal.get_workflow_handle(workflow_id, run_id=run_id).cancel(
            reason=reason or f"cancelled by {whoami()}", rpc_timeout=RPC_LIMIT
        )

    async def forget(self, workflow_id: str, agent_id: str, by: str | None = None) -> bool:
        """An operator's word that the compute is gone. False when nothing is tearing this agent down."""
        forget = ForgetRequest(agent_id=agent_id, by=by or whoami())
        heard = False
        for workflow in (f"teardown/{agent_id}", workflow_id):
            try:
                await self.temporal.get_workflow_handle(workflow).signal(
                    "forget_compute", forget, rpc_timeout=RPC_LIMIT
                )
                heard = True
            except RPCError as e:
                if e.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return heard

    async def _names_first_runs(self) -> bool:
        """Whether the answer to a start that joins a run says where that began. Older servers name the latest reset."""
        if self._first_runs is None:
            info = await self.temporal.workflow_service.get_system_info(
                GetSystemInfoRequest(), retry=True, timeout=RPC_LIMIT
            )
            version = re.match(r"(\d+)\.(\d+)", info.server_version)
            self._first_runs = version is not None and tuple(map(int, version.groups())) >= NAMES_FIRST_RUNS
        return self._first_runs

    def _handle(self, started: Started) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(started.workflow_id, run_id=started.run_id)


def workflow_id_for(request: ProvisionRequest) -> str:
    """`provision/job/<job_id>` for a job, so that a job is one provision; else one of its own."""
    if request.warm_for:
        return f"provision/warm/{request.warm_for}/{uuid.uuid4()}"
    return f"provision/job/{request.job_id}" if request.job_id else f"provision/adhoc/{uuid.uuid4()}"


def summary_of(request: ProvisionRequest) -> str:
    """One line for the list of workflows: the job and its labels, at most 200 bytes."""
    labels = ", ".join(request.labels) or "any agent"
    text = f"job {request.job_id}: {labels}" if request.job_id else labels
    text = f"warm for {request.warm_for}: {labels}" if request.warm_for else text
    return text.encode()[:200].decode(errors="ignore")


def whoami() -> str:
    """The operator's name, for the record of who asked."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def agent_id_of(description: Any) -> str:
    """The agent that this run is for; the server has it as a search attribute only later, so derive it as the run does.

    A reset keeps the id of the run that it was reset from; so does the agent.
    """
    info = description.workflow_execution_info
    return agent_id_for(info.first_run_id or info.execution.run_id)


def agent_id_for(first_run_id: str) -> str:
    """The agent of the execution that began with this run."""
    return "scaler-" + first_run_id.replace("-", "")


def _failed(cause: BaseException | None) -> ProvisionFailed:
    if isinstance(cause, ApplicationError):
        detail = str(cause.details[0]) if cause.details else None
        return ProvisionFailed(cause.message, cause.type or "Unknown", detail)
    if isinstance(cause, CancelledError):
        return ProvisionFailed("the provision was cancelled", "Cancelled", cancelled=True)
    if isinstance(cause, TerminatedError):
        return ProvisionFailed(
            "the provision's workflow was terminated, which runs no cleanup: the reaper tears its compute down",
            "Terminated",
        )
    return ProvisionFailed(str(cause), type(cause).__name__)


def _short(error: BaseException) -> str:
    """The system's own words, out of the structure that the SDK prints: `… Os { …, message: "Connection refused" }`."""
    text = str(error)
    if said := re.search(r'\b(?:message|error): "([^"]+)"', text):
        return said.group(1)
    return text.splitlines()[0][:200] if text else type(error).__name__
