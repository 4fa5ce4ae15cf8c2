"""Installations that share one cloud, whose listings lie as a test says; and passes, as a schedule starts them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client, ScheduleActionExecutionStartWorkflow, ScheduleHandle

from hatchway.backends.base import Accepted, Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.client import Started
from hatchway.model import ComputeRef, ProvisionState, ReclaimOutcome, ScaleDownReason, TeardownFacts
from hatchway.namespace import namespace_uuid
from hatchway.schedules import make_reclaim_schedule, reclaim_of
from hatchway.store.installation import installation_id, tie_namespace
from hatchway.store.pool import Database
from tests.support.lab import Lab, control_worker
from tests.support.namespaces import until
from tests.support.scripted import Cloud, ScriptedBackend, Step, straight_on
from tests.support.stack import laptop

HOST = "host-1"


class SharedCloud(Cloud):
    """Compute of several installations."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: dict[str, str] = {}
        """Agent id to installation id."""

    def create_for(self, installation: str, agent_id: str) -> None:
        """A create whose effect comes when nobody waits for it any more."""
        self.owner[agent_id] = installation
        self.create(agent_id, HOST)

    def asked_for(self) -> list[str]:
        """Agent ids, once for each destroy that was asked for."""
        return [agent_id for what, agent_id, _ in self.log if what == "asked to destroy"]


@dataclass
class OwnedBackend(ScriptedBackend):
    """A backend of one installation: it lists and ends what bears its id, and nothing else. Its list may lie."""

    cloud: SharedCloud = field(default_factory=SharedCloud)
    installation: str = ""
    before_list: Step = straight_on
    """May hang or raise; so may the next one, after each that was listed."""
    after_listed: Step = straight_on
    hides: set[str] = field(default_factory=set)
    repeats: int = 1
    makes_up: list[str] = field(default_factory=list)

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        self.cloud.owner[spec.agent_id] = spec.installation_id
        return await super().spawn(spec, progress)

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        if self.cloud.owner.get(agent_id, self.installation) != self.installation:
            self.cloud.log.append(("asked to destroy", agent_id, self.host))
            return Gone()
        return await super().destroy(agent_id, facts, reason)

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        await self.before_list("")
        ours = [agent for agent in list(self.cloud.live) if self.cloud.owner.get(agent) == self.installation]
        for agent_id in [*ours, *self.makes_up] * self.repeats:
            if agent_id not in self.hides:
                yield OwnedCompute(agent_id, ComputeRef(backend="bare-metal", ref=agent_id, host_id=self.host))
                await self.after_listed(agent_id)


@dataclass
class Home:
    """An installation in its namespace, with one host."""

    lab: Lab
    backend: OwnedBackend
    cloud: SharedCloud
    database_url: str

    async def orphan(self, agent_id: str) -> None:
        self.cloud.create_for(self.lab.installation, agent_id)

    async def at_work(self, **request: Any) -> Started:
        """An agent that a gateway has adopted. Its spawn has answered: one that is still to confirm what it made would
        take it away again where the test takes the row away.
        """
        started = await self.lab.provision(**request)
        await self.lab.reaches(started, ProvisionState.AWAITING_ADOPTION)
        await self.lab.adopt(started)
        return started

    async def loses_rows(self, *agent_ids: str) -> None:
        """As a database that was restored from a backup of before they began."""
        for table in ("scaler_spawning_agents", "scaler_agent_presence", "scaler_provision_outcomes"):
            await self.lab.db.fetch_all(
                f"delete from {table} where agent_id = any(%(ids)s)",  # noqa: S608 - ours
                {"ids": list(agent_ids)},
            )

    async def reclaim(self) -> ReclaimOutcome:
        return await reclaim(self.lab.temporal)


async def paused(temporal: Client, host_id: str = HOST) -> ScheduleHandle:
    """The host's schedule, whose passes begin only where a test triggers them: its own begin at every fifth minute of
    the hour. A worker that finds it so leaves it so.
    """
    await make_reclaim_schedule(temporal, host_id)
    schedule = temporal.get_schedule_handle(reclaim_of(host_id).id)
    await schedule.pause(note="the test triggers it")
    return schedule


async def reclaim(temporal: Client, host_id: str = HOST) -> ReclaimOutcome:
    """One pass, by the host's schedule, so that it hears of the pass before. Raises what it fails with."""
    schedule = await paused(temporal, host_id)

    async def quiet() -> bool:
        return not (await schedule.describe()).info.running_actions

    async def runs() -> list[str]:
        done = (await schedule.describe()).info.recent_actions
        return [a.action.first_execution_run_id for a in done
                if isinstance(a.action, ScheduleActionExecutionStartWorkflow)]  # fmt: skip

    await until(quiet, what="the pass before is over")
    before = await runs()
    await schedule.trigger()

    async def begun() -> str | None:
        new = [run for run in await runs() if run not in before]
        return new[0] if new else None

    run_id = await until(begun, what="the pass has begun")
    (workflow_id,) = [
        run.action.workflow_id
        for run in (await schedule.describe()).info.recent_actions
        if isinstance(run.action, ScheduleActionExecutionStartWorkflow) and run.action.first_execution_run_id == run_id
    ]
    outcome: ReclaimOutcome = await temporal.get_workflow_handle(workflow_id, result_type=ReclaimOutcome).result()
    return outcome


@asynccontextmanager
async def at_home(temporal: Client, database_url: str, cloud: SharedCloud, *, tied: bool = True) -> AsyncIterator[Home]:
    """A control worker and one host, on a database that belongs to this namespace. Nothing polls when it ends."""
    async with AsyncExitStack() as exits:
        db = await exits.enter_async_context(Database.open(database_url))
        if tied:
            await tie_namespace(db, await namespace_uuid(temporal))
        backend = OwnedBackend(cloud=cloud, host=HOST, installation=await installation_id(db))
        lab = await Lab.on(temporal, db, backend)
        if tied:
            await lab.apply(laptop(maxAgents=8))
        await exits.enter_async_context(control_worker(lab))
        lab.start_host(backend)
        exits.push_async_callback(lab.stop_host, HOST)
        yield Home(lab, backend, cloud, database_url)
