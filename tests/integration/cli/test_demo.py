"""`hatchway demo` as a stranger or a CI machine runs it: nothing set up, no terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowExecutionStatus

from hatchway.client import HatchwayClient, Started
from hatchway.dev.demo import TOKEN
from hatchway.dev.stack import Stack, connected
from hatchway.model import EndReason, JobResult
from hatchway.store.outcomes import Outcomes
from hatchway.store.slots import Slots
from tests.integration.cli.conftest import ProcessesIn, clean_environment

STAGES = [
    "slot reserved", "auth resolved", "agent process spawned", "claim redeemed", "registered and adopted", "job done",
    "torn down", "slot free",
]  # fmt: skip


def demo(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hatchway.cli", "demo", "--directory", str(directory)],
        env=clean_environment(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


async def test_a_demo_shows_every_stage_with_its_time_and_agrees_with_the_servers(
    directory: Path, processes_in: ProcessesIn
) -> None:
    done = demo(directory / "demo", CI="1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert processes_in(directory) == []
    told = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line[7:10] == " s "]
    stages = [text.split("  ")[0] for _, _, text in told]
    assert sorted(stages) == sorted(STAGES)
    assert stages.index("torn down") < stages.index("slot free")
    assert all(float(seconds) >= 0 for seconds, _, _ in told)
    assert "│ hello from the job" in done.stdout
    result = last_line(done)
    assert list(result) == ["agent_id", "workflow_id", "run_id", "ui_url", "stages_s", "ok"]
    assert result["ok"] is True
    assert result["ui_url"] in done.stdout
    # The same servers again, on the data that the demo left behind.
    async with connected(Stack(directory / "demo", directory / "demo" / "config.yaml")) as (client, db):
        handle = client.temporal.get_workflow_handle(result["workflow_id"], run_id=result["run_id"])
        described = await handle.describe()
        outcome = await client.outcome(Started(result["workflow_id"], result["run_id"], result["agent_id"]))
        row = await Outcomes(db).get(result["agent_id"])
        assert described.status is WorkflowExecutionStatus.COMPLETED
        assert described.raw_description.workflow_execution_info.first_run_id == result["run_id"]
        assert outcome.agent_id == result["agent_id"]
        assert outcome.stages.model_dump(mode="json") == result["stages_s"]
        assert row is not None
        assert (row.end_reason, row.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
        assert await Slots(db).get(result["agent_id"]) is None
        assert await _inputs_without(client, result, (directory / "demo" / "secrets" / TOKEN).read_text())


async def _inputs_without(client: HatchwayClient, result: dict[str, Any], secret: str) -> bool:
    """The job's secret was resolved, and its history has only the reference."""
    handle = client.temporal.get_workflow_handle(result["workflow_id"], run_id=result["run_id"])
    text = b"".join([event.SerializeToString() async for event in handle.fetch_history_events()])
    return f"demo:{TOKEN}".encode() in text and secret.encode() not in text


def test_a_second_demo_in_the_same_directory_provisions_another_agent(directory: Path) -> None:
    first, second = demo(directory / "demo", CI="1"), demo(directory / "demo", CI="1")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert last_line(first)["agent_id"] != last_line(second)["agent_id"]


def test_a_demo_that_is_stopped_half_way_leaves_nothing_running(directory: Path, processes_in: ProcessesIn) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hatchway.cli", "demo", "--directory", str(directory / "demo")],
        env=clean_environment({"CI": "1"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "registered and adopted" in line:
            break

    process.terminate()
    _, errors = process.communicate(timeout=120)

    assert process.returncode == 130
    assert "Traceback" not in errors
    assert processes_in(directory) == []


@pytest.mark.parametrize(("key", "code"), [(b"\n", 0), (b"\x03", 130)])
def test_on_a_terminal_the_ui_stays_up_until_enter_or_ctrl_c(
    directory: Path, processes_in: ProcessesIn, key: bytes, code: int
) -> None:
    with terminal_demo(directory / "demo") as (process, terminal):
        shown = read_until(terminal, b"until you press Enter")
        page = re.search(rb"watch it at (\S+)", shown)
        assert page is not None
        answer = httpx.get(page[1].decode(), trust_env=False)
        os.write(terminal, key)
        rest = read_until(terminal, None)
        process.wait(120)

    assert answer.status_code == 200
    assert process.returncode == code
    assert processes_in(directory) == []
    if code == 0:
        assert json.loads(rest.decode().splitlines()[-1])["ok"] is True


@contextmanager
def terminal_demo(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A demo on a terminal of its own, and the terminal's other side."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hatchway.cli", "demo", "--directory", str(directory)],
        env=clean_environment({}),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=_own_terminal,  # noqa: PLW1509 - two system calls, nothing that takes a lock
    )
    os.close(its)
    try:
        yield process, ours
    finally:
        process.terminate()
        process.wait(120)
        os.close(ours)


def _own_terminal() -> None:
    """Make stdin the controlling terminal, and have Ctrl-C count: a shell's background job would ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read_until(terminal: int, words: bytes | None) -> bytes:
    """What the terminal shows up to `words`, or to its end."""
    shown = b""
    while words is None or words not in shown:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # EIO: nobody has the other side open any more
            part = b""
        if not part:
            assert words is None, shown.decode()
            break
        shown += part
    return shown


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@127.0.0.1:1/db"])
def test_a_database_of_ones_own_that_is_away_ends_the_demo_with_a_sentence(
    directory: Path, url: str, processes_in: ProcessesIn
) -> None:
    done = demo(directory / "demo", CI="1", DATABASE_URL=url)

    assert done.returncode == 4
    assert "Postgres" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert processes_in(directory) == []
