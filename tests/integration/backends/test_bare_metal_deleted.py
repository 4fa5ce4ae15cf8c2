"""Files of a running agent that somebody deletes: a cleaner of temporary files, an operator, the job itself as root."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hatchway.backends.base import SpawnSpec
from tests.contract.backend import destroy, environment_for, fresh_agent_id, live_becomes, silent
from tests.contract.bare_metal import BareMetalHarness, bare_metal_spec, processes_of, shims_of
from tests.support.namespaces import until


def shell(agent_id: str, script: str) -> SpawnSpec:
    return bare_metal_spec(agent_id, ["sh", "-c", script], environment_for(agent_id))


def _without_limits(spec: SpawnSpec) -> SpawnSpec:
    """In no control group, which would tell what belongs to it."""
    return replace(spec, scaler=spec.scaler.model_copy(update={"enforce_cgroups": False}))


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


@pytest.mark.parametrize("delete", [_the_record, _all_that_is_in_it, _its_pids, _its_lock, _its_intent])
async def test_a_spawn_that_is_repeated_finds_the_agent_whose_files_were_deleted(
    harness: BareMetalHarness, delete: Callable[[Path], None]
) -> None:
    """One process for each agent, and the one that there is may be at work."""
    agent_id = fresh_agent_id()
    wanted = shell(agent_id, "exec sleep 3600")
    first = await harness.backend.spawn(wanted, silent)
    delete(harness.state_dir / agent_id)

    again = await (await harness.another()).spawn(wanted, silent)

    assert (list(processes_of(agent_id)), again) == ([int(first.ref)], first)
    assert await harness.backend.find(agent_id) == first
    await destroy(harness.backend, agent_id)
    await until(lambda: _nothing_remains(harness, agent_id), what="its supervisor ends as well")


async def test_the_end_of_an_agent_is_told_whose_files_were_deleted_before_its_spawn_was_repeated(
    harness: BareMetalHarness,
) -> None:
    agent_id = fresh_agent_id()
    wanted = shell(agent_id, "exec sleep 3600")
    first = await harness.backend.spawn(wanted, silent)
    _the_record(harness.state_dir / agent_id)
    await harness.backend.spawn(wanted, silent)

    os.kill(int(first.ref), signal.SIGKILL)

    exits = harness.backend.exits()
    told = await asyncio.wait_for(anext(exits), 60)
    assert (told.agent_id, told.exit_code) == (agent_id, 137)
    assert await harness.live(agent_id) == 0
    await destroy(harness.backend, agent_id)


@pytest.mark.parametrize("delete", [_the_record, _all_that_is_in_it])
async def test_a_spawn_that_is_repeated_starts_afresh_where_only_leftovers_run(
    harness: BareMetalHarness, delete: Callable[[Path], None]
) -> None:
    """Its supervisor was killed and took the agent along, and what that had started has no parent any more."""
    agent_id = fresh_agent_id()
    await harness.backend.spawn(_without_limits(shell(agent_id, "setsid sleep 3600 & exec sleep 3600")), silent)
    await live_becomes(harness, agent_id, 2)
    for pid in shims_of(agent_id):
        os.kill(pid, signal.SIGKILL)
    await live_becomes(harness, agent_id, 1)
    delete(harness.state_dir / agent_id)

    again = await harness.backend.spawn(_without_limits(shell(agent_id, "exec sleep 3600")), silent)

    assert list(processes_of(agent_id)) == [int(again.ref)]
    await destroy(harness.backend, agent_id)


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

    await until(done.exists, what="the job came to its end")
    await live_becomes(harness, agent_id, 0)
    async with asyncio.timeout(60):
        await destroy(harness.backend, agent_id)
