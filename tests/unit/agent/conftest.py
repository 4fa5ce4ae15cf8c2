"""A gateway that a test scripts, and agents that are started against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_gateway import (
    FakeGateway,
)
from tests.unit.agent.process import CLAIM, RUN, SOURCE, Launch, Running


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()
    yield fake
    fake.stop()


@pytest.fixture
def launch(gateway: FakeGateway, tmp_path: Path) -> Iterator[Launch]:
    """Starts the one file as an isolated interpreter would find it: no site packages, no Hatchway."""
    started: list[Running] = []

    def start(
        *command: str, url: str | None = None, environment: dict[str, str] | None = None, prelude: str = ""
    ) -> Running:
        variables = {
            "PATH": os.environ["PATH"],
            "KICI_ORCHESTRATOR_URL": url or gateway.url,
            "KICI_SCALER_CLAIM_CODE": CLAIM,
            "KICI_AGENT_ID": "scaler-1",
        } | (environment or {})
        run = ["-c", f"{prelude}\n{RUN}"] if prelude else [str(SOURCE)]
        output = tmp_path / f"output-{len(started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *run, *(["--", *command] if command else [])],
                env=variables, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(Running(process, output))
        return started[-1]

    yield start
    for process in (running.process for running in started):
        # The agent hands it to its job, so that nothing of a failed test stays behind.
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
