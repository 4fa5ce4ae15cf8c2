"""Writes again what a restored database does not know of an agent whose compute stands and whose workflow is open.

    no row                ──► the row, from the workflow's request, where it stands, and the configuration
    a row, not adopted    ──► the registration and the token's hash, from the adopt update that the workflow accepted

With its token back an agent is answered at its next heartbeat as if nothing had been. Without, it is told to stop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Request
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from hatchway import matching
from hatchway.client import RPC_LIMIT, HatchwayClient
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config, LabelSet, Scaler
from hatchway.errors import HatchwayError
from hatchway.liveness import OpenWorkflow
from hatchway.model import AdoptedSpec, AdoptRequest, ComputeRef, ProvisionRequest
from hatchway.resources import shape
from hatchway.store.reclaiming import LostAdoption, LostRow, Reclaiming, Restored
from hatchway.transitions import ADOPTABLE


class CannotRestore(HatchwayError):
    """The row cannot be put together. Says what is missing and what to do; the compute is left alone."""


@dataclass
class _Remembered:
    """What one run's history says of adoptions."""

    adoption: tuple[AdoptRequest, AdoptedSpec] | None = None
    reset_from: str | None = None
    """The run that it was made of."""


class Restoring:
    def __init__(self, store: Reclaiming, config: CurrentConfig, temporal: Client, platform: str) -> None:
        self._store = store
        self._config = config
        self._temporal = temporal
        self._platform = platform

    async def restore(self, agent_id: str, found: OpenWorkflow, compute: ComputeRef) -> bool:
        """False: nothing was to be done, as its workflow is ending it. Raises CannotRestore."""
        status = await HatchwayClient(self._temporal).status(found.workflow_id)
        if status.agent_id != agent_id or status.state not in ADOPTABLE:
            return False
        request = await self._request(found.workflow_id)
        adoption = await self._adoption(agent_id, found.workflow_id) if status.adopted_by else None
        version, config = await self._config.current()
        scaler, label_set = self._planned(agent_id, status.scaler, request, config)
        wants = shape(request.resources, label_set.resources, config.defaults.resources)
        answer = await self._store.restore(
            LostRow(
                agent_id=agent_id,
                scaler=scaler.name,
                workflow_id=found.workflow_id,
                first_run_id=found.first_run_id,
                job_id=request.job_id,
                run_id=request.run_id,
                label_set=list(label_set.labels),
                mandatory_labels=list(scaler.mandatory_labels),
                roles=list(scaler.roles),
                backend_type=scaler.type.value,
                mcpu=wants.mcpu,
                mem_bytes=wants.mem_bytes,
                config_version=version,
                compute=compute,
                # Who can be written again whole is adopted next; cut off in between, by the next pass.
                adopted_by=None if adoption else status.adopted_by,
                deadline_at=status.deadline_at,
                adoption_timeout=timedelta(seconds=scaler.adoption_timeout_seconds),
            )
        )
        if answer is Restored.JOB_HAS_AGENT:
            raise CannotRestore(
                f"job {request.job_id} has another agent in the database: `hatchway list` shows it; end this one with "
                f"`hatchway cancel {agent_id}`, or that one, and the next pass writes this one's row"
            )
        if answer is Restored.RESTORED and adoption:
            await self._store.restore_adoption(adoption)
        return answer is Restored.RESTORED

    async def restore_adoption(self, agent_id: str, workflow_id: str) -> bool:
        """Have a row know of its agent's registration again. False: there is none that its workflow remembers whole.

        By the history alone, which is there also while no worker could answer for the workflow.
        """
        adoption = await self._adoption(agent_id, workflow_id)
        return adoption is not None and await self._store.restore_adoption(adoption)

    async def _adoption(self, agent_id: str, workflow_id: str) -> LostAdoption | None:
        """The last adoption that the workflow has answered; None where its token is not known.

        One that was reset has taken its adoption from its row, which is lost: the run before it remembers. A run whose
        history has been purged remembers nothing any more.
        """
        run_id: str | None = None
        while True:
            try:
                remembered = await self._remembered(workflow_id, run_id)
            except RPCError as e:
                if e.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise
            run_id = remembered.reset_from
            if remembered.adoption or run_id is None:
                break
        if remembered.adoption is None:
            return None
        adopt, spec = remembered.adoption
        if adopt.agent_id != agent_id or adopt.token_hash is None:  # another start under that id; an older gateway
            return None
        return LostAdoption(
            agent_id=agent_id,
            instance_id=adopt.instance_id,
            registration_id=adopt.registration_id,
            token_hash=adopt.token_hash,
            labels=spec.labels,
        )

    async def _remembered(self, workflow_id: str, run_id: str | None) -> _Remembered:
        asked: dict[str, Request] = {}
        found = _Remembered()
        async for event in self._events(workflow_id, run_id):
            if request := _update_request(event):
                if request.input.name == "adopt":
                    asked[request.meta.update_id] = request
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                done = event.workflow_execution_update_completed_event_attributes
                if done.meta.update_id in asked and done.outcome.HasField("success"):
                    given = asked[done.meta.update_id].input.args.payloads
                    (adopt,) = await self._temporal.data_converter.decode(given, [AdoptRequest])
                    (spec,) = await self._temporal.data_converter.decode(done.outcome.success.payloads, [AdoptedSpec])
                    found.adoption = adopt, spec
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                failed = event.workflow_task_failed_event_attributes
                if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
                    found.reset_from = failed.base_run_id
        return found

    async def _request(self, workflow_id: str) -> ProvisionRequest:
        """What it was started with: the first event of its history, also after a reset."""
        async for event in self._events(workflow_id, None, page_size=1):
            given = event.workflow_execution_started_event_attributes.input.payloads
            (request,) = await self._temporal.data_converter.decode(given, [ProvisionRequest])
            assert isinstance(request, ProvisionRequest)  # noqa: S101 - the type that was asked for
            return request
        raise CannotRestore(f"{workflow_id} has no history: end it with `temporal workflow cancel -w {workflow_id}`")

    def _events(
        self, workflow_id: str, run_id: str | None, page_size: int | None = None
    ) -> AsyncIterator[HistoryEvent]:
        handle = self._temporal.get_workflow_handle(workflow_id, run_id=run_id)
        return handle.fetch_history_events(page_size=page_size, rpc_timeout=RPC_LIMIT)

    def _planned(
        self, agent_id: str, name: str | None, request: ProvisionRequest, config: Config
    ) -> tuple[Scaler, LabelSet]:
        ways = f"apply one that has it (`hatchway config apply FILE`), or end the agent: `hatchway cancel {agent_id}`"
        scaler = config.scaler(name or "")
        if scaler is None:
            raise CannotRestore(f"scaler {name} has left the configuration: {ways}")
        if request.warm_for is not None:
            label_set = scaler.warm_label_set
        else:
            matches = matching.match(
                request.labels, request.exclude_labels, request.role, [scaler],
                default_platform=self._platform, agent_id=agent_id,
            )  # fmt: skip
            label_set = matches[0].label_set if matches else None
        if label_set is None:
            raise CannotRestore(f"scaler {name} has no label set for it in the configuration any more: {ways}")
        return scaler, label_set


def _update_request(event: HistoryEvent) -> Request | None:
    """The update that this event brings: accepted at once, or, after a reset, admitted before."""
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
        accepted = event.workflow_execution_update_accepted_event_attributes
        return accepted.accepted_request if accepted.HasField("accepted_request") else None
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ADMITTED:
        return event.workflow_execution_update_admitted_event_attributes.request
    return None
