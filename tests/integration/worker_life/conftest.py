"""Workers as processes of their own, and a gateway in this one."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hatchway.client import Started
from hatchway.model import ProvisionState
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces, until
from tests.support.stack import Stack, label_set, laptop, running_stack
from tests.support.worker_process import WorkerProcess

Health = tuple[int, dict[str, Any]]


@pytest.fixture
def ran() -> Iterator[Path]:
    """A file to which every job of `stack` appends its agent's id: a job that ran twice stands there twice.

    Agents run as nobody, and every session of pytest that starts closes pytest's own directories to others.
    """
    with tempfile.TemporaryDirectory(prefix="hatchway-worker-life-") as directory:
        Path(directory).chmod(0o711)
        file = Path(directory, "ran")
        file.touch()
        file.chmod(0o666)
        yield file


@pytest.fixture
def may_stop(ran: Path) -> Path:
    """What agents of the label `stubborn` do not heed a SIGTERM without: a teardown lasts until a test makes it."""
    return ran.with_name("may-stop")


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, ran: Path, may_stop: Path) -> AsyncIterator[Stack]:
    """A gateway and no worker. `linux` runs a job of two seconds."""
    config = laptop(
        maxAgents=50,
        maxConcurrentSpawns=4,
        stopGraceSeconds=120,
        labelSets=[
            label_set("linux", "/bin/sh", "-c", f'echo "$KICI_AGENT_ID" >> {ran}; sleep 2'),
            label_set("long", "/bin/sh", "-c", "sleep 600"),
            {
                "labels": ["stubborn"],
                "user": "nobody",
                "command": [
                    "/bin/sh",
                    "-c",
                    f"trap '' TERM; echo up >> {ran}; while [ ! -e {may_stop} ]; do sleep 0.2; done",
                ],
            },
        ],
    )
    async with running_stack(namespaces, database_url, config, with_worker=False) as running:
        yield running


@pytest.fixture
def stubborn(stack: Stack, ran: Path) -> Callable[[], Awaitable[Started]]:
    """Starts a provision; its agent runs, and heeds no SIGTERM, when that answers."""

    async def provision() -> Started:
        started = await stack.provision(labels=["stubborn"], job_id="job-1")
        await stack.reaches(started, ProvisionState.AWAITING_ADOPTION)
        await until(ran.read_text, what="the agent's first word")
        return started

    return provision


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    async with running_lab(namespaces, database_url) as running:
        yield running


async def health(worker: WorkerProcess, path: str = "/readyz") -> Health | None:
    """Status and body; None while nothing listens."""
    async with httpx.AsyncClient(trust_env=False, timeout=15) as http:
        try:
            answer = await http.get(worker.health_url + path)
        except httpx.TransportError:
            return None
    return answer.status_code, answer.json()


@pytest.fixture
def asked() -> Callable[..., Awaitable[Health | None]]:
    """Asks a worker for its health."""
    return health


@pytest.fixture
def ready() -> Callable[[WorkerProcess], Awaitable[dict[str, Any]]]:
    """Waits until a worker says that it is ready; what it says."""

    async def wait(worker: WorkerProcess) -> dict[str, Any]:
        async def answers() -> dict[str, Any] | None:
            answer = await health(worker)
            return answer[1] if answer and answer[0] == 200 else None

        body: dict[str, Any] = await until(answers, what=f"a ready worker; it said: {worker.said()[-800:]}")
        return body

    return wait


@pytest.fixture
def tearing_down(stack: Stack) -> Callable[[Started], Awaitable[None]]:
    """Waits until a worker has begun with the teardown of a provision."""

    async def wait(started: Started) -> None:
        async def begun() -> bool:
            described = await stack.temporal.get_workflow_handle(started.workflow_id).describe()
            return any(
                pending.activity_type.name == "teardown" and pending.last_worker_identity
                for pending in described.raw_description.pending_activities
            )

        await until(begun, what="a teardown under way")

    return wait
