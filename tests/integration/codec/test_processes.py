"""One variable for a worker, a gateway and a client: then Temporal's own files hold nothing of a job."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatchway.client import Started
from hatchway.codec import VARIABLE, EncryptingCodec, codec_from
from hatchway.codec_server import CodecServer, Settings
from hatchway.dev.ports import free_port
from hatchway.dev.temporal import temporal_binary
from hatchway.model import JobResult
from tests.support.corpus import Corpus
from tests.support.markers import Place, hits
from tests.support.processes import Processes, running_processes
from tests.support.stack import label_set, laptop

TOKEN = secrets.token_hex(32)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Passable for the users that Postgres and the agents run as."""
    path = Path(tempfile.mkdtemp(prefix="hatchway-codec-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def keys(directory: Path) -> Path:
    path = directory / "payload-keys"
    path.touch(mode=0o600)
    path.write_text(f"2026-12 {base64.b64encode(secrets.token_bytes(32)).decode()}\n")
    return path


@pytest.mark.scenario("S41")
async def test_temporals_own_files_hold_no_label_and_who_has_the_keys_sees_all(
    directory: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"marker-{secrets.token_hex(8)}"
    config = laptop(labelSets=[{**label_set("works", "/bin/sh", "-c", "exit 0"), "labels": ["works", marker]}])
    if os.geteuid() != 0:
        del config["scalers"][0]["labelSets"][0]["user"]
    monkeypatch.setenv(VARIABLE, str(keys))
    async with running_processes(
        directory,
        config,
        namespace=f"n-{secrets.token_hex(6)}",
        instance_id="gateway",
        gateway_port=free_port(),
        worker_env={},
        env_of_both={VARIABLE: str(keys)},
    ) as processes:
        started = await processes.provision(labels=["works", marker], job_id="build-7")
        outcome = await asyncio.wait_for(processes.hatchway.outcome(started), 90)
        await processes.nothing_left()
        corpus = Corpus()
        await corpus.take_all(processes)
        shown = {how: _temporal_show(processes, started, keys, how) for how in ("without", "with")}

    assert outcome.result is JobResult.SUCCEEDED
    found = {name for name, place in corpus.places.items() if hits([place], {"the marker": marker})}
    assert "Postgres dump" in found, "the search would be blind"
    assert {"Temporal's database, raw", "Temporal's database, rows", "history: inputs"} <= set(corpus.places)
    assert found <= {"Postgres dump", "Postgres files", "worker log", "gateway log"}  # which are Hatchway's own
    readable = {how: bool(hits([Place("shown", {how: text})], {"the marker": marker})) for how, text in shown.items()}
    assert readable == {"without": False, "with": True}


def _temporal_show(processes: Processes, started: Started, keys: Path, how: str) -> bytes:
    """`temporal workflow show`, as an operator would read it."""
    codec = codec_from({VARIABLE: str(keys)})
    assert isinstance(codec, EncryptingCodec)
    with CodecServer(Settings(0, TOKEN), codec) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        options = ["--codec-endpoint", server.address, "--codec-auth", f"Bearer {TOKEN}"] if how == "with" else []
        done = subprocess.run(
            [temporal_binary(), "workflow", "show", "--address", processes.temporal.address, "--namespace",
             processes.client.namespace, "-w", started.workflow_id, "--output", "json", *options],
            capture_output=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        )  # fmt: skip
        server.shutdown()
    assert done.returncode == 0, done.stderr
    return done.stdout
