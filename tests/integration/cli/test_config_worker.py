"""A worker process and the configuration: its own file, SIGHUP, and the versions that others apply."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from hatchway.client import HatchwayClient, ProvisionFailed
from hatchway.errors import DeclineReason
from hatchway.model import OnCapacity, ProvisionRequest
from hatchway.store.config_versions import ConfigVersion, ConfigVersions
from hatchway.store.pool import Database
from hatchway.task_queues import CONTROL, spawn_queue
from tests.integration.cli.conftest import Hatchway, clean_environment
from tests.support.namespaces import Namespaces, until

WITHIN = 2.0
"""Seconds within which an apply reaches every worker."""


def scaler(name: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": name, "type": "bare-metal", "maxAgents": 1,
        "labelSets": [{"labels": [name], "user": "nobody"}], **keys,
    }  # fmt: skip


def write(file: Path, *scalers: dict[str, Any]) -> Path:
    file.write_text(json.dumps({"version": 1, "scalers": list(scalers)}))
    return file


class Worker:
    """`hatchway worker` as a process. What it logs can be awaited."""

    def __init__(self, environment: dict[str, str], log: Path, *arguments: str) -> None:
        self._environment = environment
        self._log = log
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hatchway.cli", "worker", *self._arguments,
                env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def hang_up(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def says(self, words: str, **fields: str) -> dict[str, Any]:
        """The first entry of its log whose event holds these words, and whose fields are these."""

        async def said() -> dict[str, Any] | None:
            text = self._log.read_text()
            assert self.running, text
            entries = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
            return next((e for e in entries if words in e["event"] and fields.items() <= e.items()), None)

        found: dict[str, Any] = await until(said)
        return found

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(self._process.wait(), 60)


class Cluster:
    """A namespace and a database, with as many workers as a test starts."""

    def __init__(self, client: Client, database_url: str, db: Database, directory: Path) -> None:
        self.client = client
        self.versions = ConfigVersions(db)
        self.file = directory / "hatchway.yaml"
        self.given = {
            "DATABASE_URL": database_url,
            "TEMPORAL_ADDRESS": client.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": client.namespace,
        }
        self.hatchway = Hatchway(self.given)
        self._directory = directory
        self._workers: list[Worker] = []

    async def worker(self, *arguments: str, serves: str = CONTROL) -> Worker:
        """A worker that polls the queue `serves`."""
        number = len(self._workers)
        worker = Worker(
            clean_environment(self.given), self._directory / f"worker-{number}.log",
            "--host-id", f"host-{number}", "--state-dir", str(self._directory / f"state-{number}"), *arguments,
        )  # fmt: skip
        self._workers.append(worker)
        await worker.start()
        await worker.says("polling", task_queue=serves)
        return worker

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def in_force(self) -> ConfigVersion:
        current = await self.versions.current()
        assert current is not None
        return current

    async def polled(self, queue: str) -> bool:
        """Whether anybody polls this queue for activities, by the server's own account."""
        answer = await self.client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
        )
        return len(answer.pollers) > 0


@pytest.fixture
async def cluster(namespaces: Namespaces, database_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Database.open(database_url) as db:
        cluster = Cluster(await namespaces.take(), database_url, db, tmp_path)
        try:
            yield cluster
        finally:
            await cluster.stop()


async def test_a_worker_stores_its_file_in_a_cluster_that_has_none_and_only_then(cluster: Cluster) -> None:
    write(cluster.file, scaler("one"))
    await cluster.worker("--config", str(cluster.file))
    first = await cluster.in_force()
    other = write(cluster.file.with_name("other.yaml"), scaler("two"))

    second = await cluster.worker("--config", str(other))

    assert (first.version, first.source, first.note) == (1, str(cluster.file), "first configuration")
    assert (await second.says("the file is not applied"))["file"] == str(other)
    assert (await cluster.in_force()) == first


async def test_sighup_applies_the_file_again_and_a_file_with_faults_changes_nothing(cluster: Cluster) -> None:
    worker = await cluster.worker("--config", str(write(cluster.file, scaler("one"))))

    cluster.file.write_text("version: 1\nscalers:\n  - name: one\n    maxAgent: 3\n")
    worker.hang_up()
    refused = await worker.says("the file is not applied, and nothing has changed")
    after_fault = await cluster.in_force()
    write(cluster.file, scaler("one", maxAgents=7))
    worker.hang_up()
    applied = await worker.says("SIGHUP: configuration applied")
    after_apply = await cluster.in_force()
    worker.hang_up()
    await worker.says("SIGHUP: the file says what is in force")

    assert f"{cluster.file}:4:5: scalers[0].maxAgent: unknown key; did you mean maxAgents?" in refused["error"]
    assert "scalers[0].type: is required" in refused["error"]
    assert after_fault.version == 1
    assert "~ scalers[one].maxAgents: 1 -> 7" in applied["changes"]
    assert (after_apply.version, after_apply.parent, after_apply.source) == (2, 1, str(cluster.file))
    assert (await cluster.in_force()).version == 2
    assert worker.running


async def test_sighup_without_a_file_says_so_and_the_worker_goes_on(cluster: Cluster) -> None:
    cluster.hatchway.object("config", "apply", str(write(cluster.file, scaler("one"))))
    worker = await cluster.worker()

    worker.hang_up()

    await worker.says("started without --config, so there is no file to read again")
    assert worker.running
    assert (await cluster.in_force()).version == 1


async def test_every_worker_that_gets_the_signal_brings_the_file_and_it_is_applied_once(cluster: Cluster) -> None:
    write(cluster.file, scaler("one"))
    workers = [await cluster.worker("--config", str(cluster.file)) for _ in range(2)]
    write(cluster.file, scaler("one", maxAgents=9))

    for worker in workers:
        worker.hang_up()

    said = [(await worker.says("SIGHUP: "))["event"] for worker in workers]
    assert sorted(said) == ["SIGHUP: configuration applied", "SIGHUP: the file says what is in force"]
    assert (await cluster.in_force()).version == 2


async def test_a_new_scalers_queue_is_polled_within_two_seconds_and_a_removed_ones_is_left(cluster: Cluster) -> None:
    worker = await cluster.worker(
        "--config", str(write(cluster.file, scaler("old"), scaler("stays"))), serves=spawn_queue("old")
    )
    await worker.says("polling", task_queue=spawn_queue("stays"))

    cluster.hatchway.object("config", "apply", str(write(cluster.file, scaler("stays"), scaler("new"))))
    applied = time.monotonic()
    await worker.says("polling", task_queue=spawn_queue("new"))
    said_after = time.monotonic() - applied

    async def new_is_polled() -> bool:
        return await cluster.polled(spawn_queue("new"))

    await until(new_is_polled)
    await worker.says("task queue left", task_queue=spawn_queue("old"))
    assert said_after < WITHIN
    assert time.monotonic() - applied < 2 * WITHIN
    assert await cluster.polled(spawn_queue("stays"))


async def test_a_worker_outlives_a_configuration_that_only_a_newer_release_can_read(cluster: Cluster) -> None:
    worker = await cluster.worker("--config", str(write(cluster.file, scaler("one"))), serves=spawn_queue("one"))
    current = await cluster.in_force()

    await cluster.versions.apply(
        {**current.content, "quantum": {}}, source="a newer release", by="x", note=None, expected_version=None,
        capacities=[],
    )  # fmt: skip
    said = await worker.says("the configuration cannot be read; going on with what runs")
    cluster.hatchway.object("config", "rollback", "1")
    cluster.hatchway.object("config", "apply", str(write(cluster.file, scaler("one"), scaler("two"))))

    await worker.says("polling", task_queue=spawn_queue("two"))
    assert "quantum: unknown key" in said["error"]


async def test_a_worker_that_holds_an_old_version_admits_nobody_under_an_old_cap(cluster: Cluster) -> None:
    await cluster.worker("--config", str(write(cluster.file, scaler("one", maxAgents=4))))
    hatchway = HatchwayClient(cluster.client)

    cluster.hatchway.object("config", "apply", str(write(cluster.file, scaler("one", maxAgents=0))))
    # At once: the worker may keep the version that it has read for another second.
    answer = await hatchway.provision(ProvisionRequest(labels=["one"], on_capacity=OnCapacity.DECLINE))

    with pytest.raises(ProvisionFailed, match="the cap is 0") as refused:
        await hatchway.wait_adopted(answer)
    assert refused.value.detail == DeclineReason.NEVER_FITS
