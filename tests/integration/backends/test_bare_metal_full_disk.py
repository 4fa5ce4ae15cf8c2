"""An agent that fills the disk of its own record: what it printed is lost, and nothing else."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.errors import SpawnCode, TransientSpawnError
from tests.contract.backend import destroy, environment_for, exit_of, fresh_agent_id, silent
from tests.contract.bare_metal import INSTALLATION, bare_metal_spec, processes_of
from tests.support.postgres_fixtures import private_directory


@pytest.fixture
def small_disk() -> Iterator[Path]:
    with private_directory("hatchway-full-") as directory:
        directory.chmod(0o711)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k,mode=711", "tmpfs", directory], check=True)
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.mark.needs("root")
async def test_an_agent_whose_output_fills_the_disk_does_its_job_and_its_exit_code_is_known(small_disk: Path) -> None:
    backend = BareMetalBackend("m-test", small_disk / "state", INSTALLATION)
    done = Path(f"/tmp/hatchway-done-{uuid.uuid4().hex}")
    agent_id, late = fresh_agent_id(), fresh_agent_id()
    script = f"head -c 2000000 /dev/zero && echo done > {done}; exit 3"
    try:
        await backend.spawn(bare_metal_spec(agent_id, ["sh", "-c", script], environment_for(agent_id)), silent)
        ended = await exit_of(backend, agent_id)
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "filler").write_bytes(b"x" * 400_000)
        with pytest.raises(TransientSpawnError) as refused:
            await backend.spawn(bare_metal_spec(late, ["sleep", "600"], environment_for(late)), silent)

        assert done.exists()
        assert ended.exit_code == 3
        assert refused.value.code is SpawnCode.DISK_FULL
        assert list(processes_of(late)) == []
        for each in (agent_id, late):
            await destroy(backend, each)
        assert list((small_disk / "state").iterdir()) == []
    finally:
        done.unlink(missing_ok=True)
        await backend.close()
