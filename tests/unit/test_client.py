"""A dispatcher installs the client beside code of its own, and starts workflows by name."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hatchway.client import TemporalUnreachable, connect, summary_of, workflow_id_for
from hatchway.model import ProvisionRequest


def test_the_client_lives_beside_a_dispatchers_own_packages_of_the_same_names(tmp_path: Path) -> None:
    for name in ("workflows", "activities", "worker"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the dispatcher\\'s own, and not to be imported')\n")

    imported = subprocess.run(
        [sys.executable, "-c", "import hatchway.client, hatchway.model"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert imported.returncode == 0, imported.stderr


def test_one_job_has_one_workflow_id_and_a_request_without_a_job_has_its_own() -> None:
    job = ProvisionRequest(labels=["linux"], job_id="build-7")
    adhoc = ProvisionRequest(labels=["linux"])

    assert workflow_id_for(job) == workflow_id_for(job) == "provision/job/build-7"
    assert workflow_id_for(adhoc) != workflow_id_for(adhoc)
    assert workflow_id_for(adhoc).startswith("provision/adhoc/")


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:{port}", "(Connection refused)"), ("no-such-host.invalid:7233", "(failed to lookup address")],
)
async def test_a_server_that_is_not_there_is_named_with_the_systems_own_words(address: str, reason: str) -> None:
    with socket.socket() as unheard:  # bound and not listening: nobody else gets the port meanwhile
        unheard.bind(("127.0.0.1", 0))
        address = address.format(port=unheard.getsockname()[1])

        with pytest.raises(TemporalUnreachable) as refused:
            await connect(target_host=address)

    assert f"Temporal does not answer at {address}" in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("labels", [["é" * 190], ["l" * 100] * 50, []])
def test_a_summary_stays_within_two_hundred_bytes(labels: list[str]) -> None:
    assert len(summary_of(ProvisionRequest(labels=labels, job_id="j")).encode()) <= 200
