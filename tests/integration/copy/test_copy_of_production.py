"""The procedure "Copy of production" of the operations page, as one: nobody of the original is touched by any step.

Staging is as close as it can be: the same machine, the same state directory, the same Docker engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psycopg
import pytest
from temporalio.client import Client

import worker
from hatchway.client import HatchwayClient, Started
from hatchway.model import EndReason, ProvisionRequest, ProvisionState, SweepOutcome, SweepRequest
from hatchway.store.pool import Database
from hatchway.task_queues import CONTROL
from tests.integration.reclaim.rig import reclaim
from tests.support.chaos.processes import of_agent
from tests.support.docker_fixtures import bridge_address
from tests.support.namespaces import Namespaces, until
from tests.support.postgres_fixtures import PostgresServer, running_postgres
from tests.support.processes import CLOSED
from tests.support.proxy import FaultProxy
from tests.support.stack import Stack, _start_gateway, _start_worker, label_set, laptop, running_stack

HOST = "the-one-host"
GO = "/tmp/go"


@pytest.fixture
def elsewhere() -> Iterator[PostgresServer]:
    """Staging's Postgres: another server."""
    with running_postgres(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The jobs on the host end when this file is there."""
    path = Path(f"/tmp/hatchway-go-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def production_config(docker_client: docker.DockerClient, agent_image: str, go: Path) -> dict[str, Any]:
    config = laptop(
        labelSets=[
            label_set("metal", "/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done"),
            label_set("brief", "/bin/true"),
        ]
    )
    env = {"HATCHWAY_AGENT_COMMAND": json.dumps(["/bin/sh", "-c", f"until [ -e {GO} ]; do sleep 0.2; done"])}
    config["scalers"].append(
        {
            "name": "box", "type": "container", "maxAgents": 2, "networkIsolation": False,
            "labelSets": [{"labels": ["box"], "image": agent_image, "pullPolicy": "Never", "env": env}],
        }
    )  # fmt: skip
    return config | {"reaper": {"flapGraceSeconds": 1}}


@pytest.fixture
async def production(
    namespaces: Namespaces, database_url: str, docker_client: docker.DockerClient, production_config: dict[str, Any]
) -> AsyncIterator[Stack]:
    """A worker, a gateway that containers reach as well, and a database that is tied to its namespace."""
    async with running_stack(namespaces, database_url, production_config, host_id=HOST) as stack:
        port = int(stack.gateway_url.rpartition(":")[2])
        with FaultProxy(("127.0.0.1", port), host=bridge_address(docker_client)) as door:
            production_config["scalers"][1]["orchestratorUrl"] = f"http://{door.address}"
            await stack.apply(production_config)
            done = await asyncio.to_thread(cli, stack.temporal, database_url, "setup")
            assert done.returncode == 0, done.stderr
            yield stack


def cli(temporal: Client, database_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, in the environment of one of the two."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(CLOSED)}
    own = {
        "TEMPORAL_ADDRESS": temporal.service_client.config.target_host, "TEMPORAL_NAMESPACE": temporal.namespace,
        "TEMPORAL_CONFIG_FILE": os.devnull, "DATABASE_URL": database_url,
    }  # fmt: skip
    command = [sys.executable, "-m", "hatchway.cli", *arguments]
    return subprocess.run(command, env=inherited | own, capture_output=True, text=True, timeout=90, check=False)


def restored(dump_of: str, postgres: PostgresServer, into: PostgresServer) -> str:
    """By the commands that the operations page names."""
    with psycopg.connect(into.dsn, autocommit=True) as connection:
        connection.execute("create role hatchway_gateway nologin")
    copy, tools = into.empty_database(), postgres.server.bin_dir
    dump = subprocess.run([tools / "pg_dump", "--format", "custom", dump_of], capture_output=True, check=True)
    restore = [str(tools / "pg_restore"), "--no-owner", "--single-transaction", "--exit-on-error", "--dbname", copy]
    done = subprocess.run(restore, input=dump.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return copy


@dataclass
class Alive:
    """Production's agents, as they are on this machine and in its engine."""

    metal: Mapping[str, set[int]]
    box: Mapping[str, str]

    @classmethod
    def of(cls, metal: list[Started], box: list[Started], engine: docker.DockerClient) -> Alive:
        """The pid of each agent on the host, and the id of each one's container."""
        return cls(
            {one.agent_id: {min(of_agent(one.agent_id))} for one in metal},
            {one.agent_id: _container(engine, one).id for one in box},
        )


def _container(engine: docker.DockerClient, started: Started) -> Any:
    (found,) = engine.containers.list(filters={"label": f"kici-agent-id={started.agent_id}"})
    return found


async def _swept(temporal: Client) -> dict[str, int]:
    swept: SweepOutcome = await temporal.execute_workflow(
        "SweepWorkflow", SweepRequest(), id=f"sweep-{uuid.uuid4().hex}", task_queue=CONTROL, result_type=SweepOutcome
    )
    assert swept.failed == {}
    return {what: number for what, number in swept.steps["reap"].done.items() if number}


@pytest.mark.needs("docker")
async def test_a_copy_of_production_is_started_beside_it_and_production_never_notices(
    production: Stack, namespaces: Namespaces, postgres: PostgresServer, elsewhere: PostgresServer,
    docker_client: docker.DockerClient, go: Path,
) -> None:  # fmt: skip
    metal = [await production.provision(labels=["metal"], job_id=f"metal-{n}") for n in range(2)]
    box = [await production.provision(labels=["box"], job_id="box-0")]
    for started in (*metal, *box):
        await production.reaches(started, ProvisionState.ACTIVE)
    alive = Alive.of(metal, box, docker_client)
    engine_host = str((await production.slots.get(box[0].agent_id)).host_id)  # type: ignore[union-attr]

    # 1. Restored into a database of its own, with a namespace of its own.
    copy, staging = restored(production.database_url, postgres, elsewhere), await namespaces.take()

    # Who forgets the second step is refused, and told.
    same_host = ("--state-dir", str(production.state_dir), "--host-id", HOST)
    too_early = await asyncio.to_thread(cli, staging, copy, "worker", *same_host)
    plain = await asyncio.to_thread(cli, staging, copy, "setup")
    for refused in (too_early, plain):
        assert refused.returncode == 1
        assert "setup --as-copy" in refused.stdout + refused.stderr
    assert Alive.of(metal, box, docker_client) == alive

    # 2. The copy becomes an installation of its own, a minute after the dump: it shows a worker that lived then.
    with psycopg.connect(copy) as connection:  # as it is right after the dump: all that was said above takes its time
        connection.execute("update scaler_instances set last_seen_at = now()")
    fresh = await asyncio.to_thread(cli, staging, copy, "setup", "--as-copy")
    assert fresh.returncode == 1
    assert "wait a minute" in fresh.stderr
    with psycopg.connect(copy) as connection:
        connection.execute("update scaler_instances set last_seen_at = last_seen_at - interval '1 minute'")
    done = await asyncio.to_thread(cli, staging, copy, "setup", "--as-copy")
    assert done.returncode == 0, done.stderr

    # 3. doctor, a gateway, a worker: on the same host, with the same engine.
    doctor = await asyncio.to_thread(cli, staging, copy, "doctor", "--json")
    assert [found for found in json.loads(doctor.stdout)["findings"] if found["check"] == "namespace"] == []
    async with AsyncExitStack() as exits, Database.open(copy) as db:
        url = await _start_gateway(exits, copy, staging)
        settings = worker.WorkerSettings(
            database_url=copy, state_dir=production.state_dir, gateway_url=url, host_id=HOST
        )
        await _start_worker(exits, settings, staging)
        theirs = HatchwayClient(staging)
        own = await theirs.provision(ProvisionRequest(labels=["brief"], job_id="metal-0"))
        outcome = await asyncio.wait_for(theirs.outcome(own), 120)
        reaped = [await _swept(staging) for _ in range(2)]
        reclaimed = [await reclaim(staging, host) for host in (HOST, engine_host) for _ in range(3)]

        assert outcome.end_reason is EndReason.COMPLETED
        assert reaped == [{}, {}]
        assert [pass_.reclaimed for pass_ in reclaimed] == [[]] * 6
        assert [pass_.sighted for pass_ in reclaimed] == [[]] * 6
        assert await db.fetch_all("select agent_id from scaler_spawning_agents") == []
        assert Alive.of(metal, box, docker_client) == alive

        # Production goes on, beside it.
        assert await _swept(production.temporal) == {}
        go.touch()
        _container(docker_client, box[0]).exec_run(["/bin/sh", "-c", f"touch {GO}"])
        outcomes = [await asyncio.wait_for(production.hatchway.outcome(one), 60) for one in (*metal, *box)]

    assert [one.end_reason for one in outcomes] == [EndReason.COMPLETED] * 3
    await production.nothing_left()
    await until(lambda: not any(of_agent(one.agent_id) for one in (*metal, *box)), what="all agents ended")
