"""Files of a running agent that somebody deletes: a cleaner of temporary files, an operator, the job itself as root."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hatchway.backends.base import SpawnSpec
from tests.contract.backend import destroy, environment_for, fresh_agent_id, live_becomes, silent
from tests.contract.bare_metal import BareMetalHarness, bare_metal_spec, processes_of
from tests.support.namespaces import until


def shell(agent_id: str, script: str) -> SpawnSpec:
    return bare_metal_spec(agent_id, ["sh", "-c", script], environment_for(agent_id))


def _the_record(directory: Path) -> None:
    shutil.rmtree(directory)


def _all_that_is_in_it(directory: Path) -> None:
    _the_record(directory)
    directory.mkdir()


def _its_pids(directory: Path) -> None:
    (directory / "started.json").unlink()


def _its_lock(directory: Path) -> None:
    (directory / "lock").unlink()


def _its_intent(directory: Path) -> None:
    (directory / "intent.json").unlink()


@pytest.mark.parametrize("delete", [_the_record, _all_that_is_in_it, _its_pids, _its_lock, _its_intent])
async def test_a_teardown_is_not_confirmed_before_an_agent_is_gone_whose_files_were_deleted(
    harness: BareMetalHarness, delete: Callable[[Path], None]
) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, "setsid sleep 3600 & exec sleep 3600"), silent)
    await live_becomes(harness, agent_id, 2)
    delete(harness.state_dir / agent_id)

    await destroy(harness.backend, agent_id)

    assert list(processes_of(agent_id)) == []
    await until(lambda: _nothing_remains(harness, agent_id), what="its supervisor ends as well")


async def _nothing_remains(harness: BareMetalHarness, agent_id: str) -> bool:
    return await harness.remains(agent_id) == []


@pytest.fixture
def mark() -> Iterator[Path]:
    """A file that the agent's user can make and see."""
    path = Path(f"/tmp/hatchway-mark-{uuid.uuid4().hex}")
    yield path
    for left in (path, path.with_suffix(".done")):
        left.unlink(missing_ok=True)


@pytest.mark.parametrize("delete", [_the_record, _all_that_is_in_it])
async def test_a_busy_agent_whose_files_were_deleted_goes_on_however_much_it_prints(
    harness: BareMetalHarness, mark: Path, delete: Callable[[Path], None]
) -> None:
    """More than the log's cap: its files would be turned over, and there is no directory for them any more."""
    agent_id, done = fresh_agent_id(), mark.with_suffix(".done")
    script = f"until [ -e {mark} ]; do sleep 0.05; done; head -c 25000000 /dev/zero && echo done > {done}"
    await harness.backend.spawn(shell(agent_id, script), silent)
    delete(harness.state_dir / agent_id)

    mark.touch()

    await until(done.exists, 30, what="the job came to its end")
    await live_becomes(harness, agent_id, 0)
    async with asyncio.timeout(30):
        await destroy(harness.backend, agent_id)
