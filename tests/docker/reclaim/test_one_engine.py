"""Reclaim on a real engine that two installations share: containers that nobody answers for go, all others stay."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import docker
import pytest
from docker.errors import NotFound
from temporalio.client import Client
from temporalio.worker import Worker

from activities.reclaim import ReclaimActivities
from activities.restoring import Restoring
from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.config.current import CurrentConfig
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.metrics import Metrics
from hatchway.model import ReclaimOutcome
from hatchway.namespace import namespace_uuid
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.installation import tie_namespace
from hatchway.store.pool import Database
from hatchway.store.reclaiming import Reclaiming
from hatchway.task_queues import CONTROL, host_queue
from hatchway.tie import NamespaceTie
from tests.integration.reclaim.rig import reclaim
from tests.support.namespaces import Namespaces
from workflows.reclaim import ReclaimWorkflow

HOST_ID = "engine-under-test"


@pytest.fixture(scope="module")
def idle_image(docker_client: docker.DockerClient, scratch_image: str) -> Iterator[str]:
    """Runs until it is told to stop."""
    name, tag = "hatchway-test/idle-for-reclaim", "1"
    container = docker_client.api.create_container(scratch_image, command=["x"])["Id"]
    docker_client.api.commit(
        container, repository=name, tag=tag, changes='ENTRYPOINT ["/bin/sh", "-c", "exec sleep 3600"]'
    )
    docker_client.api.remove_container(container)
    yield f"{name}:{tag}"
    docker_client.api.remove_image(f"{name}:{tag}", force=True)


@dataclass
class Installed:
    """One installation, with a worker of that engine and nothing but reclaim in it."""

    temporal: Client
    db: Database
    id: str
    backend: ContainerBackend
    agents: list[str] = field(default_factory=list)

    async def spawn(self, image: str, *, has_row: bool) -> str:
        """A container of ours, whose agent holds a slot or not."""
        agent_id = f"scaler-{uuid.uuid4().hex}"
        if has_row:
            await self.db.fetch_all(
                "insert into scaler_spawning_agents (agent_id, scaler_name, state) values (%(id)s, 'docker', 'active')",
                {"id": agent_id},
            )
        label_set = LabelSet(labels=["linux"], image=image)
        scaler = Scaler(
            name="docker", type=ScalerType.CONTAINER, max_agents=9, label_sets=[label_set], network_isolation=False
        )
        spec = SpawnSpec(
            agent_id=agent_id, scaler=scaler, label_set=label_set, labels=("linux",), installation_id=self.id,
            env={"KICI_AGENT_ID": agent_id}, image=image, stop_grace=timedelta(seconds=1),
        )  # fmt: skip
        await self.backend.spawn(spec, lambda message: None)
        self.agents.append(agent_id)
        return agent_id

    async def reclaim(self) -> ReclaimOutcome:
        return await reclaim(self.temporal, HOST_ID)


@asynccontextmanager
async def installed(temporal: Client, database_url: str, client: docker.DockerClient) -> AsyncIterator[Installed]:
    async with Database.open(database_url) as db:
        known = str((await tie_namespace(db, await namespace_uuid(temporal))).installation_id)
        backend = ContainerBackend(HOST_ID, None, known)
        store, metrics = Reclaiming(db), Metrics.of(temporal)
        activities = ReclaimActivities(
            HOST_ID, {"container": backend}, known, store, NamespaceTie(db, temporal), temporal,
            Restoring(store, CurrentConfig(ConfigVersions(db), {}), temporal, "linux/amd64"), metrics,
        )  # fmt: skip
        try:
            async with (
                Worker(temporal, task_queue=CONTROL, workflows=[ReclaimWorkflow]),
                Worker(temporal, task_queue=host_queue(HOST_ID), activities=activities.all),
            ):
                yield Installed(temporal, db, known, backend)
        finally:
            await backend.close()
            for container in _containers(client, known).values():
                try:
                    client.api.remove_container(container, v=True, force=True)
                except NotFound:
                    continue


def _containers(client: docker.DockerClient, installation: str) -> dict[str, str]:
    """Agent id to container id, in any state, seen without the backend."""
    found = client.api.containers(all=True, filters={"label": [f"hatchway.installation={installation}"]})
    return {container["Labels"]["kici-agent-id"]: container["Id"] for container in found}


async def test_two_installations_on_one_engine_reclaim_their_own_orphans_and_nothing_else(
    docker_client: docker.DockerClient,
    namespaces: Namespaces,
    fresh_database: Callable[[], str],
    idle_image: str,
) -> None:
    """A stranger's container, without any label of ours, stands there too."""
    async with (
        installed(await namespaces.take(), fresh_database(), docker_client) as one,
        installed(await namespaces.take(), fresh_database(), docker_client) as other,
    ):
        stranger = docker_client.api.create_container(idle_image, labels={"kici-agent-id": "scaler-stranger"})["Id"]
        docker_client.api.start(stranger)
        try:
            held = {home.id: await home.spawn(idle_image, has_row=True) for home in (one, other)}
            orphans = {home.id: await home.spawn(idle_image, has_row=False) for home in (one, other)}

            first = [await home.reclaim() for home in (one, other)]
            standing = [set(_containers(docker_client, home.id)) for home in (one, other)]
            second = [await home.reclaim() for home in (one, other)]
            left = [set(_containers(docker_client, home.id)) for home in (one, other)]
            stranger_runs = docker_client.api.inspect_container(stranger)["State"]["Running"]
        finally:
            docker_client.api.remove_container(stranger, v=True, force=True)

    homes = [one.id, other.id]
    assert [[sighting.agent_id for sighting in outcome.sighted] for outcome in first] == [[orphans[i]] for i in homes]
    assert standing == [{held[i], orphans[i]} for i in homes]
    assert [outcome.reclaimed for outcome in second] == [[orphans[i]] for i in homes]
    assert left == [{held[i]} for i in homes]
    assert stranger_runs
