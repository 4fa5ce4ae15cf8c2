"""The workflows on the real Temporal and the real store, with a scripted backend: where every edge can be reached.

The test plays the agent: it sends the updates and signals that a gateway would.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.worker import Worker

import workflows
from activities.adoption import AdoptionActivities
from activities.auth import AuthActivities
from activities.compute import ComputeActivities, Installation
from activities.purge import PurgeActivities
from activities.reap import ReapActivities
from activities.reclaim import ReclaimActivities, ReclaimRetirement
from activities.releasing import Releasing
from activities.restoring import Restoring
from activities.slots import SlotActivities
from activities.sweep import SweepActivities
from activities.teardown import TeardownActivities
from activities.warm import WarmActivities
from hatchway.client import HatchwayClient, ProvisionFailed, Started
from hatchway.config.current import CurrentConfig, apply
from hatchway.config.schema import Config
from hatchway.metrics import Metrics
from hatchway.model import (
    AdoptedSpec,
    AdoptRequest,
    ComputeExit,
    CondemnRequest,
    EndReason,
    ForgetRequest,
    ProvisionOutcome,
    ProvisionRequest,
    ProvisionState,
    ProvisionStatus,
    PurgeRequest,
    ReleaseRequest,
    SweepOutcome,
    SweepRequest,
)
from hatchway.runner import ContextFreeRunner
from hatchway.store.adoption import Adoption
from hatchway.store.backoff import Backoff
from hatchway.store.claims import Claims
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.installation import installation_id
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.purging import Purging
from hatchway.store.reaping import Reaping
from hatchway.store.reclaiming import Reclaiming
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from hatchway.store.warm import WarmAgents
from hatchway.task_queues import CONTROL, host_queue, spawn_queue
from hatchway.tie import NamespaceTie
from hatchway.waking import wake
from tests.support.namespaces import Namespaces, unless_slow, until
from tests.support.scripted import Cloud, ScriptedBackend
from tests.support.stack import laptop

SCALER = "laptop"
STICKY_FOR = timedelta(seconds=2)
"""How long a workflow task waits for the worker that has the workflow cached: tests kill those."""


@dataclass
class Lab:
    temporal: Client
    db: Database
    hatchway: HatchwayClient
    slots: Slots
    adoption: Adoption
    outcomes: Outcomes
    cloud: Cloud
    backend: ScriptedBackend
    environ: dict[str, str]
    installation: str = ""
    ended_with: ProvisionFailed | None = None
    """The last failure that a scripted end has seen."""
    _hosts: dict[str, tuple[Worker, asyncio.Task[None]]] = field(default_factory=dict)

    @classmethod
    async def on(cls, temporal: Client, db: Database, backend: ScriptedBackend) -> Lab:
        """The lab of one namespace and one database. Nothing polls yet."""
        return cls(
            temporal=temporal, db=db, hatchway=HatchwayClient(temporal), slots=Slots(db), adoption=Adoption(db),
            outcomes=Outcomes(db), cloud=backend.cloud, backend=backend, environ={},
            installation=await installation_id(db),
        )  # fmt: skip

    # ── start and look ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def metrics(self) -> Metrics:
        return Metrics.of(self.temporal)

    async def provision(self, workflow_id: str | None = None, **request: Any) -> Started:
        request.setdefault("labels", ["linux"])
        return await self.hatchway.provision(ProvisionRequest.model_validate(request), workflow_id=workflow_id)

    def handle(self, started: Started) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(started.workflow_id)

    def run_of(self, started: Started, run_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(started.workflow_id, run_id=run_id)

    async def status(self, started: Started) -> ProvisionStatus:
        return await self.hatchway.status(started.workflow_id)

    async def reaches(self, started: Started, *states: ProvisionState) -> ProvisionStatus:
        async def there() -> ProvisionStatus | None:
            status = await unless_slow(self.status(started))
            return status if status is not None and status.state in states else None

        found: ProvisionStatus = await until(there, what=f"{states}")
        return found

    async def outcome(self, started: Started) -> ProvisionOutcome:
        # A first round that nobody confirms takes 40 s of it.
        return await asyncio.wait_for(self.hatchway.outcome(started), 120)

    async def failure(self, started: Started) -> ProvisionFailed:
        """The failure that the provision ends with; fails the test when it completes."""
        try:
            outcome = await self.outcome(started)
        except ProvisionFailed as e:
            return e
        raise AssertionError(f"the provision completed: {outcome}")

    # ── what a gateway, a reaper, a host and an operator send ───────────────────────────────────────────────────

    async def adopt(self, started: Started, registration: str = "r-1", instance: str = "gateway-1") -> AdoptedSpec:
        request = AdoptRequest(agent_id=started.agent_id, instance_id=instance, registration_id=registration)
        spec: AdoptedSpec = await self.handle(started).execute_update(
            "adopt", request, id=f"{registration}-{uuid.uuid4().hex}", result_type=AdoptedSpec
        )
        return spec

    async def adoption_refusal(self, started: Started, registration: str = "r-1", instance: str = "gateway-1") -> str:
        """The error type that an adoption is refused with."""
        try:
            await self.adopt(started, registration, instance)
        except WorkflowUpdateFailedError as e:
            return str(getattr(e.cause, "type", e.cause))
        raise AssertionError("the adoption was not refused")

    async def complete(self, started: Started, result: str = "succeeded", registration: str = "r-1") -> None:
        await self.outcomes.complete(started.agent_id, registration, result, 0)
        await self.release(started, EndReason.COMPLETED)

    async def release(self, started: Started, reason: EndReason = EndReason.RELEASED, now: bool = False) -> None:
        await self.signal(
            started, "release", ReleaseRequest(agent_id=started.agent_id, reason=reason, by="test", now=now)
        )

    async def exits(self, started: Started, code: int = 1, tail: str = "boom") -> None:
        await self.signal(
            started, "compute_exited", ComputeExit(agent_id=started.agent_id, exit_code=code, log_tail=tail)
        )

    async def condemn(self, started: Started, reason: EndReason = EndReason.HEARTBEAT_TIMEOUT) -> None:
        await self.signal(started, "condemn", CondemnRequest(agent_id=started.agent_id, reason=reason))

    async def forget(self, started: Started) -> None:
        await self.signal(started, "forget_compute", ForgetRequest(agent_id=started.agent_id, by="test"))

    async def signal(self, started: Started, name: str, payload: Any) -> None:
        await self.handle(started).signal(name, payload)

    async def reset(self, started: Started, *, to_start: bool = False, after_spawn: int | None = None) -> Started:
        """`temporal workflow reset`: to the first workflow task, or to the last one that is complete, or to that one
        of those that were completed after the spawn had been asked for, counted from 0.
        """
        handle = self.handle(started)
        run_id = (await handle.describe()).run_id
        finished: list[int] = []
        finished_after_spawn: list[int] = []
        spawn_asked = False
        async for event in self.run_of(started, run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                asked = event.activity_task_scheduled_event_attributes.activity_type.name
                spawn_asked = spawn_asked or asked == "spawn"
            elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                (finished_after_spawn if spawn_asked else finished).append(event.event_id)
        finished += finished_after_spawn
        to = finished_after_spawn[after_spawn] if after_spawn is not None else finished[0 if to_start else -1]
        answer = await self.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=started.workflow_id, run_id=run_id),
                reason="by test",
                workflow_task_finish_event_id=to,
                request_id=uuid.uuid4().hex,
            )
        )
        return replace(started, run_id=answer.run_id)

    async def sweep(self) -> SweepOutcome:
        """One pass, as the schedule would start it."""
        outcome: SweepOutcome = await self.temporal.execute_workflow(
            "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL,
            result_type=SweepOutcome,
        )  # fmt: skip
        return outcome

    async def purge(self) -> SweepOutcome:
        """One pass, as the schedule would start it."""
        outcome: SweepOutcome = await self.temporal.execute_workflow(
            "PurgeWorkflow", PurgeRequest(), id=f"purge-{uuid.uuid4().hex}", task_queue=CONTROL,
            result_type=SweepOutcome,
        )  # fmt: skip
        return outcome

    # ── hosts and configuration ─────────────────────────────────────────────────────────────────────────────────

    async def apply(self, config: dict[str, Any]) -> None:
        """Apply a configuration and signal whom that concerns, as `hatchway config apply` does."""
        applied = await apply(
            ConfigVersions(self.db), Config.model_validate(config), source="test", by="test", note=None,
            expected_version=None,
        )  # fmt: skip
        await wake(self.temporal, self.slots, applied.wake)

    def start_host(self, backend: ScriptedBackend, *, spawns: bool = True, scaler: str = SCALER) -> None:
        """Poll the queues of one host, and of the scaler unless it only serves what is bound to it."""
        compute = self.compute(backend)
        queues: dict[str, list[Callable[..., Any]]] = {
            host_queue(backend.host_id): [compute.spawn, self.teardown(backend).teardown, *self.reclaim(backend).all]
        }
        if spawns:
            queues[spawn_queue(scaler)] = [compute.spawn]
        for queue, serves in queues.items():
            worker = Worker(
                self.temporal,
                task_queue=queue,
                activities=serves,
                max_heartbeat_throttle_interval=timedelta(milliseconds=200),
            )
            self._hosts[f"{backend.host_id} {queue}"] = (worker, asyncio.create_task(worker.run()))

    async def stop_host(self, host_id: str) -> None:
        for key in [k for k in self._hosts if k.startswith(f"{host_id} ")]:
            worker, task = self._hosts.pop(key)
            await worker.shutdown()
            await task

    def compute(self, backend: ScriptedBackend) -> ComputeActivities:
        return ComputeActivities(
            backend.host_id,
            {"bare-metal": backend},
            self.slots,
            Claims(self.db),
            CurrentConfig(ConfigVersions(self.db), self.environ),
            Installation(id=self.installation, gateway_url="http://127.0.0.1:1", agent_env={}, platform="linux/amd64"),
            self.metrics,
            Backoff(self.db),
        )

    def teardown(self, backend: ScriptedBackend) -> TeardownActivities:
        releasing = Releasing(self.slots, self.temporal, self.metrics)
        return TeardownActivities(backend.host_id, {"bare-metal": backend}, self.adoption, releasing, self.metrics)

    def reclaim(self, backend: ScriptedBackend) -> ReclaimActivities:
        store = Reclaiming(self.db)
        config = CurrentConfig(ConfigVersions(self.db), self.environ)
        return ReclaimActivities(
            backend.host_id, {"bare-metal": backend}, self.installation, store, NamespaceTie(self.db, self.temporal),
            self.temporal, Restoring(store, config, self.temporal, "linux/amd64"), self.metrics,
        )  # fmt: skip

    # ── invariants ──────────────────────────────────────────────────────────────────────────────────────────────

    async def nothing_left(self) -> None:
        """No row, no counter, no compute."""

        async def clean() -> bool:
            return not await self.slots.list() and not self.cloud.live

        await until(clean, what="everything gone")
        assert await self.db.fetch_all("select scope from scaler_capacity where agents <> 0") == []
        assert await self.db.fetch_all("select agent_id from scaler_waiters") == []


def control_worker(lab: Lab) -> Worker:
    """A Worker for workflows and database steps, in this process."""
    current = CurrentConfig(ConfigVersions(lab.db), lab.environ)
    slots = SlotActivities(
        lab.slots, lab.adoption, lab.outcomes, current, lab.temporal,
        metrics=lab.metrics, instance_id="lab", platform="linux/amd64",
    )  # fmt: skip
    adoption, auth = AdoptionActivities(lab.adoption, Backoff(lab.db), current, lab.metrics), AuthActivities(current)
    sweep = SweepActivities(Line(lab.db), lab.slots, lab.temporal, lab.metrics)
    tie = NamespaceTie(lab.db, lab.temporal)
    restoring = Restoring(Reclaiming(lab.db), current, lab.temporal, "linux/amd64")
    reap = ReapActivities(Reaping(lab.db), lab.slots, lab.adoption, current, tie, lab.temporal, lab.metrics, restoring)
    purge = PurgeActivities(Purging(lab.db), current, lab.metrics)
    warm = WarmActivities(WarmAgents(lab.db), lab.slots, lab.adoption, lab.outcomes, current, lab.temporal, lab.metrics)
    return Worker(
        lab.temporal,
        task_queue=CONTROL,
        workflows=workflows.ALL,
        workflow_runner=ContextFreeRunner(),
        activities=[
            slots.reserve, slots.release, slots.record_outcome, slots.request_drain,
            adoption.adopt, adoption.close, auth.resolve_container_auth, sweep.line, reap.reap, purge.purge,
            *warm.all, ReclaimRetirement(Reclaiming(lab.db), lab.temporal, lab.metrics).retire,
        ],
        sticky_queue_schedule_to_start_timeout=STICKY_FOR,
    )  # fmt: skip


@asynccontextmanager
async def running_lab(
    namespaces: Namespaces, database_url: str, config: dict[str, Any] | None = None
) -> AsyncIterator[Lab]:
    """A control worker and one host. Nothing polls when it ends."""
    async with AsyncExitStack() as exits:
        temporal = await namespaces.take()
        db = await exits.enter_async_context(Database.open(database_url))
        lab = await Lab.on(temporal, db, ScriptedBackend(Cloud()))
        await lab.apply(config or laptop())
        await exits.enter_async_context(control_worker(lab))
        lab.start_host(lab.backend)
        try:
            yield lab
        finally:
            for host_id in {key.split(" ")[0] for key in lab._hosts}:
                await lab.stop_host(host_id)
