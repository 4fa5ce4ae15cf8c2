"""`python worker.py` as a process of its own, with real agents: killed, restarted, and beside an engine that hangs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hatchway.dev.temporal import temporal_binary
from hatchway.errors import ErrorType
from hatchway.model import EndReason, JobResult, ProvisionState
from tests.support.namespaces import Namespaces, until
from tests.support.postgres_fixtures import private_directory
from tests.support.stack import Stack, label_set, laptop, running_stack
from tests.support.worker_process import ROOT, WorkerProcess

S = ProvisionState


def _config(word: Path) -> dict[str, Any]:
    """Two kinds of agents run until the file `word` is there, or for so long that their test has failed."""
    wait = f'n=0; until [ -e "{word}" ] || [ $n -ge 900 ]; do sleep 0.1; n=$((n + 1)); done'
    broken = f"echo no gateway here; {wait}; exit 7"
    return laptop(
        labelSets=[
            label_set("linux", "/bin/sh", "-c", "echo hello; sleep 1"),
            label_set("slow", "/bin/sh", "-c", f"{wait}; exit 3"),
            {"labels": ["broken"], "user": "nobody", "command": ["/bin/sh", "-c", broken]},
        ]
    )


@pytest.fixture
def word() -> Iterator[Path]:
    """Where the agents look for it; they may be another user's."""
    with private_directory("hatchway-word-") as directory:
        directory.chmod(0o755)
        yield directory / "go"


@pytest.fixture
async def door(namespaces: Namespaces, database_url: str, word: Path) -> AsyncIterator[Stack]:
    """A gateway, and no worker yet."""
    async with running_stack(namespaces, database_url, _config(word), with_worker=False) as running:
        yield running


@pytest.fixture
async def worker_process(door: Stack) -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess(door)
    await process.start()
    yield process
    await process.stop()


async def test_a_start_from_the_plain_command_line_completes(door: Stack, worker_process: WorkerProcess) -> None:
    client = door.temporal
    started = await asyncio.create_subprocess_exec(
        str(temporal_binary()), "workflow", "start", "--type", "ProvisionWorkflow", "--task-queue", "hatchway",
        "--workflow-id", "by-hand", "--input", '{"labels":["linux"]}',
        "--address", client.service_client.config.target_host, "--namespace", client.namespace,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await started.wait() == 0

    outcome = await asyncio.wait_for(client.get_workflow_handle("by-hand").result(), 60)

    assert (outcome["end_reason"], outcome["result"]) == ("completed", "succeeded")
    await door.nothing_left()


async def test_a_worker_that_is_killed_under_a_job_finds_its_agent_again(
    door: Stack, worker_process: WorkerProcess, word: Path
) -> None:
    """The agent does not notice; its result counts, and its process is gone at the end."""
    started = await door.provision(labels=["slow"], job_id="job-1")
    await door.reaches(started, S.ACTIVE)

    async def confirmed() -> bool:  # an agent may be at work before its spawn has been answered
        row = await door.slots.get(started.agent_id)
        return row is not None and row.compute is not None

    await until(confirmed)

    await worker_process.kill()
    await worker_process.start()
    word.touch()
    outcome = await asyncio.wait_for(door.hatchway.outcome(started), 90)

    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.FAILED)
    await door.nothing_left()
    await until(lambda: _agents_of(started.agent_id) == [])


async def test_an_exit_that_no_worker_saw_is_reported_with_its_code_and_output(
    door: Stack, worker_process: WorkerProcess, word: Path
) -> None:
    started = await door.provision(labels=["broken"], job_id="job-1")
    await door.reaches(started, S.AWAITING_ADOPTION)
    await worker_process.kill()
    word.touch()
    await until(lambda: _agents_of(started.agent_id) == [])

    await worker_process.start()

    with pytest.raises(Exception, match="exit code 7") as failed:
        await asyncio.wait_for(door.hatchway.outcome(started), 90)
    assert getattr(failed.value, "error_type", None) == ErrorType.SPAWN_FAILED
    assert "no gateway here" in str(failed.value)
    await door.nothing_left()


async def test_sigterm_leaves_agents_alone_and_exits_clean(
    door: Stack, worker_process: WorkerProcess, word: Path
) -> None:
    started = await door.provision(labels=["slow"], job_id="job-1")
    await door.reaches(started, S.ACTIVE)

    code = await worker_process.stop()

    assert code == 0
    assert _agents_of(started.agent_id)
    await worker_process.start()
    word.touch()
    assert (await door.hatchway.outcome(started)).end_reason is EndReason.COMPLETED
    await door.nothing_left()


@pytest.mark.scenario("S07")
async def test_an_engine_that_accepts_and_never_answers_holds_nobody_else_up(
    door: Stack, worker_process: WorkerProcess, word: Path, tmp_path: Path
) -> None:
    config = _config(word)
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "engine.sock"))
    silent.listen()
    stuck: dict[str, Any] = {
        "name": "stuck", "type": "container", "maxAgents": 4, "networkIsolation": False, "stopGraceSeconds": 0,
        "host": f"unix://{tmp_path}/engine.sock", "labelSets": [{"labels": ["docker"], "image": "busybox"}],
    }  # fmt: skip
    await door.apply({**config, "scalers": [stuck, *config["scalers"]]})

    hanging = await door.provision(labels=["docker"], job_id="job-1", spawn_timeout=5)
    others = [await door.provision(job_id=f"other-{number}") for number in range(3)]
    outcomes = await asyncio.gather(*(door.hatchway.outcome(other) for other in others))

    assert {outcome.end_reason for outcome in outcomes} == {EndReason.COMPLETED}
    with pytest.raises(Exception, match="did not end within its time limit") as failed:
        await asyncio.wait_for(door.hatchway.outcome(hanging), 120)
    assert getattr(failed.value, "error_type", None) == ErrorType.SPAWN_FAILED
    # Nobody knows what that engine did, so the slot is held until an operator says that it did nothing.
    assert [row.agent_id for row in await door.slots.list()] == [hanging.agent_id]
    assert await door.hatchway.forget(hanging.workflow_id, hanging.agent_id)
    await door.nothing_left()
    silent.close()


def _agents_of(agent_id: str) -> list[int]:
    """The processes that have this agent's id in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes() if process.name.isdigit() else b""
        except OSError:  # ended while we looked
            continue
        if f"KICI_AGENT_ID={agent_id}".encode() in environment.split(b"\0"):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def skewed_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that shifts the wall clock of the process that it is loaded into."""
    library = tmp_path_factory.mktemp("clock") / "skewed_clock.so"
    source = ROOT / "tests" / "support" / "skewed_clock.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.needs("cc")
@pytest.mark.scenario("S35")
@pytest.mark.parametrize("skew_s", [30, -30])
async def test_a_worker_whose_clock_is_wrong_provisions_all_the_same(
    namespaces: Namespaces, database_url: str, skewed_clock: Path, skew_s: int
) -> None:
    """Every limit is shorter than the skew: one that went by the worker's clock would be over, or never end."""
    environ = {"LD_PRELOAD": str(skewed_clock), "CLOCK_SKEW_S": str(skew_s)}
    before, shifted, after = time.time(), await _clock_of(environ), time.time()
    assert before - 1 < shifted - skew_s < after + 1, "not shifted: this would prove nothing"
    limits = dict.fromkeys(
        ["claimTtlSeconds", "agentTokenTtlSeconds", "adoptionTimeoutSeconds", "spawnTimeoutSeconds"], 15
    )
    config = laptop(labelSets=[label_set("linux", "/bin/sh", "-c", "sleep 16")], **limits)
    async with running_stack(namespaces, database_url, config, with_worker=False) as stack:
        worker = WorkerProcess(stack, environ=environ)
        await worker.start()
        try:
            started = await stack.provision(labels=["linux"], job_id="job-1")
            outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)
        finally:
            await worker.stop()

        assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
        await stack.nothing_left()


async def _clock_of(environ: Mapping[str, str]) -> float:
    """The time of day to a process that is started with this environment."""
    asked = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; print(time.time())",
        env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await asked.communicate()
    return float(said)
