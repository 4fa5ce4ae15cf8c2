"""The composition root: `python worker.py` and `hatchway worker` are the same thing.

Builds one Worker for each task queue that this process can serve, with explicit lists, over one database pool and one
Temporal client:

    hatchway                    workflows, database and light activities          always
    hatchway.spawn.<scaler>     spawn; as many slots as `maxConcurrentSpawns`      scalers whose backend is reached
    hatchway.host.<host_id>     bound spawns, teardowns, reclaim passes            each engine or machine reached

An engine that does not answer is tried again; what it would serve waits, and everything else goes on.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
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
from hatchway import metrics, search_attributes, warming
from hatchway.agent_env import worker_agent_env
from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.backends.base import Backend
from hatchway.backends.container import ContainerBackend
from hatchway.backends.ec2 import Ec2Backend
from hatchway.backends.event import EventBackend
from hatchway.client import connect
from hatchway.config.current import CurrentConfig
from hatchway.config.file import ConfigFile, reloading
from hatchway.config.schema import Config, Scaler, ScalerType
from hatchway.exits import Exits
from hatchway.former_scalers import FormerScaler, FormerScalers
from hatchway.handing_back import CORE_MARGIN, DEFAULT_GRACEFUL, HandingBack
from hatchway.host.identity import boot_id, default_state_dir, host_id_of_machine
from hatchway.labels import platform_of
from hatchway.queue_workers import QueueWorkers
from hatchway.reach import Reach, WorkerRefused, backend_key
from hatchway.reaping import Windows
from hatchway.reclaim_schedules import ReclaimSchedules
from hatchway.registry.pull import Logins
from hatchway.runner import ContextFreeRunner
from hatchway.signals import heed_signals, leave_at_once
from hatchway.store.adoption import Adoption
from hatchway.store.backoff import Backoff
from hatchway.store.census import Census
from hatchway.store.claims import Claims
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.endpoints import server_endpoints
from hatchway.store.former import Former
from hatchway.store.installation import installation_id
from hatchway.store.migrate import check_revision
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.purging import Purging
from hatchway.store.reaping import Reaping
from hatchway.store.reclaiming import Reclaiming
from hatchway.store.slots import Slots
from hatchway.store.waiters import Line
from hatchway.store.warm import WarmAgents
from hatchway.task_queues import CONTROL, host_queue, spawn_queue
from hatchway.tie import NamespaceTie
from hatchway.trouble import Trouble
from hatchway.versioning import versioned
from hatchway.waking import wake_all
from hatchway.worker_health import Polling, answering

log = structlog.get_logger("hatchway.worker")

RECONCILE_EVERY = 0.5
"""With the second that a configuration is kept for, a new scaler's queue is polled within 2 s of its apply."""
INSTANCE_BEAT_EVERY = 10.0
"""Seconds, both of them."""

STICKY_LIMIT = timedelta(seconds=2)
"""How long a workflow task waits for the worker that has it cached: a killed worker costs this instead of 10 s."""

HEARTBEAT_THROTTLE = timedelta(seconds=5)
"""A cancel reaches a running spawn with its next heartbeat: at most this much later."""

HOST_SLOTS = 50


@dataclass(frozen=True)
class WorkerSettings:
    database_url: str
    config: Path | None = None
    """Stored as the cluster's first configuration when the cluster has none; read and applied again on SIGHUP."""
    host_id: str | None = None
    state_dir: Path = field(default_factory=default_state_dir)
    gateway_url: str = "http://127.0.0.1:8780"
    metrics_port: int | None = None
    """Prometheus metrics on 127.0.0.1; None: no page."""
    health: str | None = None
    """HOST:PORT that answers /healthz and /readyz; None: no port."""
    graceful: timedelta = DEFAULT_GRACEFUL
    """What a running activity gets on SIGTERM before it is handed back for another worker to take up."""
    version: WorkerDeploymentVersion | None = None
    """The worker deployment and the build that this is, which Temporal then routes workflows by; None: neither."""

    @property
    def metrics_bind(self) -> str | None:
        return None if self.metrics_port is None else f"127.0.0.1:{self.metrics_port}"


async def run(settings: WorkerSettings, stop: asyncio.Event | None = None, temporal: Client | None = None) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. Raises HatchwayError for what keeps this worker from starting.

    `temporal` defaults to a client from Temporal's own environment and profiles. With `stop` given, signals are the
    caller's.
    """
    hangup, at_once = asyncio.Event(), asyncio.Event()
    own_signals = stop is None
    stop = stop or heed_signals(hangup, at_once)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(Database.open(settings.database_url, max_size=20))
        await check_revision(db)
        temporal = temporal or await connect(runtime=metrics.runtime(settings.metrics_bind))
        await probe_search_attributes(temporal)
        await NamespaceTie(db, temporal).refuse_elsewhere(await installation_id(db))
        config = CurrentConfig(ConfigVersions(db))
        file = ConfigFile(
            settings.config, ConfigVersions(db), partial(wake_all, temporal, Slots(db), Line(db)), by="worker --config"
        )
        await file.store_first()
        await config.current()
        fleet = Fleet(settings, db, temporal, config, await installation_id(db))
        async with reloading(file, hangup):
            await fleet.run(stop, at_once)
        if own_signals and fleet.left_something_behind:
            # Its thread or its cleanup hangs, and an orderly end would wait for that.
            leave_at_once()


async def probe_search_attributes(temporal: Client) -> None:
    """Raise WorkerRefused when one is missing: an upsert of it would wedge every provision."""
    query = " OR ".join(f'{key.name} = "probe"' for key in search_attributes.ALL)
    try:
        await temporal.count_workflows(query)
    except RPCError as e:
        if e.status is not RPCStatusCode.INVALID_ARGUMENT:
            raise
        raise WorkerRefused(
            f"namespace {temporal.namespace} lacks a search attribute that provisions set ({e.message}): "
            "run `hatchway setup` first"
        ) from None


class Fleet:
    """The Workers of this process, kept in step with the configuration and with the backends that can be reached."""

    def __init__(
        self, settings: WorkerSettings, db: Database, temporal: Client, config: CurrentConfig, installation: str
    ) -> None:
        self._settings = settings
        self._temporal = temporal
        self._db = db
        self._config = config
        self._machine = settings.host_id or host_id_of_machine(settings.state_dir / "host-id")
        self._instance_id = f"worker-{self._machine}-{uuid.uuid4().hex[:8]}"
        self._slots = Slots(db)
        self._adoption = Adoption(db)
        self._outcomes = Outcomes(db)
        self._claims = Claims(db)
        self._presence = Presence(db)
        self._census = Census(db)
        self._line = Line(db)
        self._warm = WarmAgents(db)
        self._reaping = Reaping(db)
        self._backoff = Backoff(db)
        self._logins = Logins(os.environ)
        self._reclaiming = Reclaiming(db)
        self._exits = Exits(self._slots, self._outcomes, temporal)
        self._tie = NamespaceTie(db, temporal)
        self._metrics = metrics.Metrics.of(temporal)
        self._installation = Installation(
            id=installation,
            gateway_url=settings.gateway_url,
            agent_env=worker_agent_env(os.environ),
            platform=platform_of(platform.machine()),
        )
        self._restoring = Restoring(self._reclaiming, config, temporal, self._installation.platform)
        self._closed_to_agents = server_endpoints(settings.database_url, temporal)
        named = settings.host_id is not None
        self._reach = Reach(self._make_backend, self._exits.tell, machine=self._machine, named=named)
        self._former = FormerScalers(Former(db), config)
        self._workers = QueueWorkers[str](temporal)
        self._config_trouble = Trouble(log, "the configuration cannot be read; going on with what runs")
        self._polling = Polling()
        self._handing_back = HandingBack()
        self.left_something_behind = False

    async def run(self, stop: asyncio.Event, at_once: asyncio.Event) -> None:
        """Serve until `stop`; then let running activities finish, or not, `at_once`. Leaves all compute alone."""
        await self._refuse_a_second_machine()
        async with answering(self._settings.health, self._db, self._temporal, self.polling):
            await self._serve(stop, at_once)

    async def _serve(self, stop: asyncio.Event, at_once: asyncio.Event) -> None:
        self._workers.start((CONTROL, 0), self._control_worker())
        beating = asyncio.create_task(self._beat())
        schedules = ReclaimSchedules(self._temporal, self._tie, self._installation.id)
        keeping = asyncio.create_task(schedules.keep(self._hosts_polled))
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._reconcile()
                done, _ = await asyncio.wait(
                    [stopping, beating, keeping, *self._workers.tasks, *self._reach.tasks],
                    timeout=RECONCILE_EVERY,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done - {stopping}:
                    if not self._reach.refuses(task):
                        task.result()  # what ends by itself here has failed for good: so has this process
        finally:
            for task in (beating, keeping, stopping):
                task.cancel()
            self._reach.leave()
            self._polling = Polling(trouble="it was told to stop")
            left = await self._workers.shut_down(self._handing_back, self._settings.graceful, at_once)
            self.left_something_behind = not left
            await self._reach.close()

    # ── which queues ────────────────────────────────────────────────────────────────────────────────────────────

    async def _reconcile(self) -> None:
        """Start what the configuration asks for and does not run yet; stop what it does not ask for any more."""
        try:
            number, config = await self._config.current()
        except Exception as e:  # away, busy, of a newer release, or set up wrongly: teardowns are served all the same
            words = self._config_trouble.met(e)
            self._polling = replace(self._polling, trouble=f"the configuration cannot be read: {words}")
            return
        self._config_trouble.over()
        former = await self._formerly(number, config)
        wanted: dict[tuple[str, int], str] = {}
        for scaler in config.scalers:
            if backend := self._reach.of(scaler):
                wanted[spawn_queue(scaler.name), scaler.max_concurrent_spawns] = backend.host_id
                wanted[host_queue(backend.host_id), HOST_SLOTS] = backend.host_id
        in_force = {scaler.name for scaler in config.scalers}
        for one in former:
            backend = self._reach.of(one.scaler)
            if backend and backend.host_id in one.hosts:
                wanted[host_queue(backend.host_id), HOST_SLOTS] = backend.host_id
            if backend and one.spawning and one.scaler.name not in in_force:
                wanted[spawn_queue(one.scaler.name), one.scaler.max_concurrent_spawns] = backend.host_id
        self._reach.give_up_all_but({backend_key(scaler) for scaler in (*config.scalers, *(f.scaler for f in former))})
        await self._workers.keep(wanted, self._compute_worker)
        away = [scaler.name for scaler in config.scalers if not self._reach.answers(scaler)]
        self._polling = Polling(
            config_version=number,
            polled=self._workers.polled,
            missing=sorted({key[0] for key in wanted if key not in self._workers}),
            unreached=away,
            refused={scaler.name: why for scaler in config.scalers if (why := self._reach.why_refused(scaler))},
            served=sum(map(self._reach.serves, config.scalers)),
            deployment=str(self._settings.version.to_canonical_string()) if self._settings.version else None,
        )

    async def _formerly(self, number: int, config: Config) -> list[FormerScaler]:
        """Scalers of former configurations that agents still need.

        Where an operator gave the host id, it means the engine in force: one that it meant before is not served.
        """
        former = await self._former.as_of(number)
        engines = {backend_key(scaler) for scaler in config.scalers if scaler.type is ScalerType.CONTAINER}
        if not (engines and self._settings.host_id):
            return former
        return [
            one for one in former
            if one.scaler.type is not ScalerType.CONTAINER or backend_key(one.scaler) in engines
        ]  # fmt: skip

    def _hosts_polled(self) -> set[str]:
        return {host for host in self._reach.host_ids if (host_queue(host), HOST_SLOTS) in self._workers}

    def polling(self) -> Polling:
        """What it polls, as of the last look at the configuration; a Worker that has ended is missing at once."""
        return replace(self._polling, missing=sorted({*self._polling.missing, *self._workers.ended}))

    async def _make_backend(self, scaler: Scaler) -> Backend:
        """Reach what serves this scaler. Raises HatchwayError while it does not answer."""
        if scaler.type is ScalerType.BARE_METAL:
            return BareMetalBackend(self._machine, self._settings.state_dir, self._installation.id)
        if scaler.type is ScalerType.EC2:
            return await Ec2Backend.connect(scaler, self._installation.id)
        if scaler.type is ScalerType.EVENT:
            return EventBackend(scaler.name, self._temporal, self._config, self._metrics)
        return await ContainerBackend.connect(
            scaler.host, self._installation.id, self._settings.host_id, closed=self._closed_to_agents
        )

    def _control_worker(self) -> Worker:
        slots = SlotActivities(
            self._slots, self._adoption, self._outcomes, self._config, self._temporal,
            metrics=self._metrics, instance_id=self._instance_id, platform=self._installation.platform,
        )  # fmt: skip
        adoption = AdoptionActivities(self._adoption, self._backoff, self._config, self._metrics)
        auth = AuthActivities(self._config)
        sweep = SweepActivities(self._line, self._slots, self._temporal, self._metrics)
        reap = ReapActivities(
            self._reaping, self._slots, self._adoption, self._config, self._tie, self._temporal, self._metrics,
            self._restoring,
        )  # fmt: skip
        purge = PurgeActivities(Purging(self._db), self._config, self._metrics)
        warm = WarmActivities(
            self._warm, self._slots, self._adoption, self._outcomes, self._config, self._temporal, self._metrics
        )
        return Worker(
            self._temporal,
            task_queue=CONTROL,
            workflows=workflows.ALL,
            workflow_runner=ContextFreeRunner(),
            activities=[
                slots.reserve, slots.release, slots.record_outcome, slots.request_drain,
                adoption.adopt, adoption.close, auth.resolve_container_auth, sweep.line, reap.reap, purge.purge,
                *warm.all, ReclaimRetirement(self._reclaiming, self._temporal, self._metrics).retire,
            ],
            identity=self._instance_id,
            sticky_queue_schedule_to_start_timeout=STICKY_LIMIT,
            deployment_config=versioned(self._settings.version),
            graceful_shutdown_timeout=self._settings.graceful + CORE_MARGIN,
            interceptors=[self._handing_back],
        )  # fmt: skip

    def _compute_activities(self, host_id: str) -> ComputeActivities:
        return ComputeActivities(
            host_id, self._reach.on_host[host_id], self._slots, self._claims, self._config, self._installation,
            self._metrics, self._backoff, self._logins,
        )  # fmt: skip

    def _reclaim_activities(self, host_id: str) -> ReclaimActivities:
        return ReclaimActivities(
            host_id, self._reach.on_host[host_id], self._installation.id, self._reclaiming, self._tie, self._temporal,
            self._restoring, self._metrics,
        )  # fmt: skip

    def _compute_worker(self, key: tuple[str, int], host_id: str, client: Client) -> Worker:
        queue, slots = key
        compute = self._compute_activities(host_id)
        releasing = Releasing(self._slots, self._temporal, self._metrics)
        teardown = TeardownActivities(
            host_id, self._reach.on_host[host_id], self._adoption, releasing, self._metrics
        ).teardown
        host_s = [teardown, *self._reclaim_activities(host_id).all]
        return Worker(
            client,
            task_queue=queue,
            activities=[compute.spawn] if queue.startswith(spawn_queue("")) else [compute.spawn, *host_s],
            max_concurrent_activities=slots,
            max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
            identity=self._instance_id,
            graceful_shutdown_timeout=self._settings.graceful + CORE_MARGIN,
            interceptors=[self._handing_back],
        )

    # ── this instance ───────────────────────────────────────────────────────────────────────────────────────────

    async def _refuse_a_second_machine(self) -> None:
        """A host id names one machine: another boot that is alive under it would kill this one's agents for gone."""
        for other in await self._presence.live_instances_with_host(self._machine):
            if other.boot_id and other.boot_id != boot_id():
                raise WorkerRefused(
                    f"host id {self._machine} is in use by another machine (instance {other.instance_id}): "
                    "give each machine its own --host-id"
                )

    async def _beat(self) -> None:
        trouble = Trouble(log, "the instance's heartbeat did not get through")
        while True:
            try:
                await self._presence.instance_beat(
                    instance_id=self._instance_id,
                    kind="worker",
                    version=version("hatchway"),
                    host_ids=[self._machine, *self._reach.host_ids],
                    boot_id=boot_id(),
                )
                self._metrics.census(await self._census.take())
                _, config = await self._config.current()
                self._metrics.warm_pools(warming.targets(config), await self._warm.counts())
                sight = await self._reaping.sight(Windows.of(config.reaper))
                self._metrics.reaping(blocked=sight.blocked, unseen=sight.unseen)
            except Exception as e:  # whatever the database answers: a worker that ends serves no teardown
                trouble.met(e)
            else:
                trouble.over()
            await asyncio.sleep(INSTANCE_BEAT_EVERY)


if __name__ == "__main__":
    from hatchway.cli import main

    sys.argv.insert(1, "worker")
    main()
