"""`hatchway dev`: up, down, down by force, and up again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Hatchway, ProcessesIn, clean_environment, configuration

UP = "Ctrl-C stops everything"


@dataclass
class Dev:
    """A `hatchway dev` in a directory."""

    directory: Path
    process: subprocess.Popen[str] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> Hatchway:
        """Start it, and wait until it says that it is up. A command line that speaks to it."""
        config = self.directory / "config.yaml"
        config.write_text(json.dumps(configuration()))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hatchway.cli", "dev", "--directory", str(self.root), "--config", str(config)],
            env=clean_environment({**(environment or {}), "PYTHONUNBUFFERED": "1"}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell's background job ignores Ctrl-C, and so would this if the tests run in one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if UP in line:
                break
        assert UP in said[-1], "".join(said)
        found = re.findall(r"export (\w+)=(.*)", (self.root / "env").read_text())
        return Hatchway({name: shlex.split(value)[0] for name, value in found})

    @property
    def root(self) -> Path:
        return self.directory / ".hatchway"

    def stop(self, how: int) -> tuple[int, str]:
        """Send a signal and wait for the end: exit code, and what was still printed."""
        assert self.process is not None
        self.process.send_signal(how)
        said, _ = self.process.communicate(timeout=120)
        return self.process.returncode, said


@pytest.fixture
def dev(directory: Path) -> Iterator[Dev]:
    dev = Dev(directory)
    yield dev
    if dev.process is not None and dev.process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            dev.stop(signal.SIGTERM)


def test_what_was_provisioned_is_still_known_after_a_restart(dev: Dev, processes_in: ProcessesIn) -> None:
    hatchway = dev.start()
    served = hatchway.provision("quick", "--wait", "closed", job_id="before-the-restart")

    code, said = dev.stop(signal.SIGTERM)
    assert (code, processes_in(dev.directory)) == (0, []), said
    again = dev.start()
    shown = again.object("show", served["agent_id"])
    repeated = again.provision("quick", job_id="before-the-restart")

    assert shown["outcome"]["end_reason"] == "completed"
    assert shown["workflow_status"] == "completed"
    assert repeated["agent_id"] == served["agent_id"]


def test_ctrl_c_ends_everything_also_the_agents(dev: Dev, processes_in: ProcessesIn) -> None:
    hatchway = dev.start()
    hatchway.provision("long", job_id="endless")
    assert len(processes_in(dev.root / "agents")) > 0

    code, said = dev.stop(signal.SIGINT)

    assert code == 130
    assert "Traceback" not in said
    assert processes_in(dev.directory) == []


def test_after_a_kill_the_next_start_ends_what_was_left_and_finds_its_agents(dev: Dev) -> None:
    hatchway = dev.start()
    agent = hatchway.provision("long", job_id="outlives-a-kill")["agent_id"]
    dev.stop(signal.SIGKILL)

    again = dev.start()

    assert again.agents()[agent]["state"] == "active"
    assert "began" in again("logs", agent).stdout
    again("cancel", agent)
    again.until_gone(agent)


def test_a_worker_that_is_killed_ends_dev_with_its_last_words(dev: Dev, processes_in: ProcessesIn) -> None:
    dev.start()
    worker = int((dev.root / "logs" / "worker.lock").read_text())

    os.kill(worker, signal.SIGKILL)
    assert dev.process is not None
    said, _ = dev.process.communicate(timeout=120)

    assert dev.process.returncode == 1
    assert "the worker has ended with exit code -9" in said
    assert processes_in(dev.directory) == []


def test_a_shell_with_the_variables_of_the_stack_that_has_ended_can_start_it_again(dev: Dev) -> None:
    """`. .hatchway/env`, as the first line that it prints says, and after its end `hatchway dev` in that shell."""
    ended = dev.start()
    agent = ended.provision("quick", "--wait", "closed", job_id="before")["agent_id"]
    dev.stop(signal.SIGTERM)

    again = dev.start(ended.environment)

    assert again.object("show", agent)["outcome"]["end_reason"] == "completed"


def test_another_stack_s_variables_are_named_where_its_database_is_away(dev: Dev) -> None:
    config = dev.directory / "config.yaml"
    config.write_text(json.dumps(configuration()))

    done = Hatchway()(
        "dev", "--directory", str(dev.root), "--config", str(config), DATABASE_URL="postgresql://u:p@127.0.0.1:1/db"
    )

    assert done.returncode == 4
    assert "unset DATABASE_URL" in done.stderr


def test_a_second_dev_in_the_same_directory_is_refused(dev: Dev) -> None:
    hatchway = dev.start()

    done = Hatchway()("dev", "--directory", str(dev.root), "--config", str(dev.directory / "config.yaml"))

    assert done.returncode == 1
    assert "another process already runs" in done.stderr
    assert hatchway.agents() == {}


def test_nobody_else_may_read_what_dev_writes(dev: Dev) -> None:
    dev.start()

    open_to_others = [
        str(path)
        for path in [dev.root, *dev.root.iterdir()]
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IRGRP | stat.S_IWGRP)
    ]

    assert open_to_others == []
    assert stat.S_IMODE((dev.root / "env").stat().st_mode) == 0o600
