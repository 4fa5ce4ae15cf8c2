"""Writes the row of an agent again whose compute stands and whose workflow is open: its database was restored.

What the row said is put together from what the workflow knows: its request, where it stands, and the configuration.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from hatchway import matching
from hatchway.client import RPC_LIMIT, HatchwayClient
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Config, LabelSet, Scaler
from hatchway.errors import HatchwayError
from hatchway.liveness import OpenWorkflow
from hatchway.model import ComputeRef, ProvisionRequest
from hatchway.resources import shape
from hatchway.store.reclaiming import LostRow, Reclaiming, Restored
from hatchway.transitions import ADOPTABLE


class CannotRestore(HatchwayError):
    """The row cannot be put together. Says what is missing; the compute is left alone."""


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
                adopted_by=status.adopted_by,
                adoption_in=_left(status.deadline_at, scaler),
            )
        )
        if answer is Restored.JOB_HAS_AGENT:
            raise CannotRestore(f"job {request.job_id} has another agent: cancel {found.workflow_id}")
        return answer is Restored.RESTORED

    async def _request(self, workflow_id: str) -> ProvisionRequest:
        """What it was started with: the first event of its history, also after a reset."""
        handle = self._temporal.get_workflow_handle(workflow_id)
        async for event in handle.fetch_history_events(page_size=1, rpc_timeout=RPC_LIMIT):
            given = event.workflow_execution_started_event_attributes.input.payloads
            (request,) = await self._temporal.data_converter.decode(given, [ProvisionRequest])
            assert isinstance(request, ProvisionRequest)  # noqa: S101 - the type that was asked for
            return request
        raise CannotRestore(f"{workflow_id} has no history")

    def _planned(
        self, agent_id: str, name: str | None, request: ProvisionRequest, config: Config
    ) -> tuple[Scaler, LabelSet]:
        scaler = config.scaler(name or "")
        if scaler is None:
            raise CannotRestore(f"scaler {name} has left the configuration: apply one that has it, or cancel the agent")
        if request.warm_for is not None:
            label_set = scaler.warm_label_set
        else:
            matches = matching.match(
                request.labels, request.exclude_labels, request.role, [scaler],
                default_platform=self._platform, agent_id=agent_id,
            )  # fmt: skip
            label_set = matches[0].label_set if matches else None
        if label_set is None:
            raise CannotRestore(f"scaler {name} has no label set for it any more: apply one, or cancel the agent")
        return scaler, label_set


def _left(deadline: datetime | None, scaler: Scaler) -> timedelta:
    if deadline is None:
        return timedelta(seconds=scaler.adoption_timeout_seconds)
    return max(deadline - datetime.now(UTC), timedelta(0))
