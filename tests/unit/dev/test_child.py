"""A child process of a dev stack."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import hatchway
from hatchway.dev.child import Child, ChildError

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"

Make = Callable[[str], Child]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Children that run a line of Python, all under one lock; whatever is left of them is ended."""
    made: list[Child] = []

    def child(program: str) -> Child:
        made.append(
            Child(
                "sleeper",
                [sys.executable, "-c", program],
                {"PATH": os.environ["PATH"]},
                log=tmp_path / "log",
                lock=tmp_path / "lock",
            )
        )
        return made[-1]

    yield child
    for each in made:
        await each.stop()


def until_up(log: Path, times: int = 1) -> None:
    end = time.monotonic() + 20
    while not log.exists() or log.read_text().count("up") < times:
        assert time.monotonic() < end
        time.sleep(0.01)


def until_it_is_noticed(child: Child) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        child.check()


def runs(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists() and "Z" not in state(pid)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_child_runs_until_it_is_stopped(make: Make, tmp_path: Path) -> None:
    child = make(SLEEP)

    child.start()
    until_up(tmp_path / "log")
    pid = child.pid
    child.check()
    running = runs(pid)
    await child.stop()

    assert (running, runs(pid)) == (True, False)
    await child.stop()


async def test_a_child_that_does_not_listen_is_killed_after_the_grace(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hatchway.dev.child.STOP_GRACE_S", 0.2)
    child = make(DEAF)
    child.start()
    until_up(tmp_path / "log")
    pid = child.pid

    await child.stop()

    assert not runs(pid)


def test_a_child_that_has_ended_is_noticed_with_its_last_words(make: Make, tmp_path: Path) -> None:
    child = make("print('the database is gone'); raise SystemExit(3)")
    child.start()

    with pytest.raises(ChildError, match=r"sleeper has ended with exit code 3: .*the database is gone"):
        until_it_is_noticed(child)


def test_a_child_left_by_a_killed_owner_is_ended_by_the_next_start(make: Make, tmp_path: Path) -> None:
    owner = (
        "import sys; from pathlib import Path; from hatchway.dev.child import Child; "
        f"c = Child('sleeper', [sys.executable, '-c', {SLEEP!r}], {{}}, log=Path('log'), lock=Path('lock')); "
        "c.start(); print(c.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", owner], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(hatchway.__file__).parents[1])},
    )  # fmt: skip
    until_up(tmp_path / "log")
    orphan = int(done.stdout)
    assert runs(orphan)

    make(SLEEP).start()

    assert not runs(orphan)


def test_a_log_is_its_owners_alone(make: Make, tmp_path: Path) -> None:
    make(SLEEP).start()

    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
