"""Limits of host processes, in this machine's own control groups: they bind, say so, and nothing escapes or stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.backends.base import SpawnSpec
from hatchway.config.schema import Scaler
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.host.cgroups import Cgroups, Limits
from tests.contract.backend import destroy, environment_for, exit_of, fresh_agent_id, live_becomes, silent
from tests.contract.bare_metal import INSTALLATION, BareMetalHarness, bare_metal_spec, processes_of, shims_of

pytestmark = pytest.mark.needs("cgroups")

MIB = 2**20
PYTHON = os.path.realpath("/usr/bin/python3")


def limited(
    agent_id: str, script: str, *, mcpu: int | None = None, mem_bytes: int | None = None, enforce: bool = True
) -> SpawnSpec:
    spec = bare_metal_spec(agent_id, ["sh", "-c", script], environment_for(agent_id))
    scaler = Scaler.model_validate({**spec.scaler.model_dump(), "enforceCgroups": enforce})
    return replace(spec, scaler=scaler, mcpu=mcpu, mem_bytes=mem_bytes)


def groups_of(agent_id: str) -> list[Path]:
    """The agent's directories, in whatever trees there are."""
    return [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name == agent_id]


def values(agent_id: str, *names: str) -> list[str]:
    return [
        path.read_text().strip() for group in groups_of(agent_id) for name in names if (path := group / name).exists()
    ]


async def test_the_agent_is_born_into_a_group_with_its_limits_and_its_supervisor_is_not(
    harness: BareMetalHarness,
) -> None:
    agent_id = fresh_agent_id()

    await harness.backend.spawn(limited(agent_id, "exec sleep 3600", mcpu=500, mem_bytes=64 * MIB), silent)

    (pid,) = processes_of(agent_id)
    (shim,) = shims_of(agent_id)
    assert values(agent_id, "cpu.cfs_quota_us", "cpu.max") in (["50000"], ["50000 100000"])
    assert set(values(agent_id, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max")) == {
        str(64 * MIB)
    }
    assert values(agent_id, "pids.max") == ["4096"]
    assert {line for text in values(agent_id, "cgroup.procs") for line in text.split()} == {str(pid)}
    assert agent_id not in Path(f"/proc/{shim}/cgroup").read_text()


async def test_a_cpu_limit_binds(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    burn = "for i in 1 2 3; do (while :; do :; done) & done; sleep 1; kill $(jobs -p) 2>/dev/null; times"

    await harness.backend.spawn(limited(agent_id, f"{burn}; exec sleep 3600", mcpu=200), silent)
    async with asyncio.timeout(60):
        while not any(int(used) for used in throttled(agent_id)):
            await asyncio.sleep(0.05)


def throttled(agent_id: str) -> Iterator[str]:
    for text in values(agent_id, "cpu.stat"):
        yield dict(line.split() for line in text.splitlines())["nr_throttled"]


async def test_an_agent_at_its_memory_limit_is_killed_alone_and_its_log_says_so(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    hungry = f"exec {PYTHON} -c 'x = bytearray(256 << 20); x[::4096] = x[::4096]; print(len(x))'"

    await harness.backend.spawn(limited(agent_id, hungry, mem_bytes=48 * MIB), silent)
    ended = await exit_of(harness.backend, agent_id)

    assert ended.exit_code == 128 + signal.SIGKILL
    assert "out of memory: the kernel killed 1 process(es) of this agent at its limit of 48 MiB" in ended.log_tail
    assert ended.log_tail == await harness.backend.logs(agent_id)


async def test_an_agent_that_stays_within_its_memory_says_nothing_of_it(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()

    await harness.backend.spawn(limited(agent_id, "echo done", mem_bytes=48 * MIB), silent)

    assert (await exit_of(harness.backend, agent_id)).log_tail == "done"


ESCAPING = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        os.execve("/bin/sleep", ["hw-escaped", "3600"], {})
    os._exit(0)
time.sleep(3600)
"""


def escaped() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path("/proc", name, "cmdline").read_bytes().startswith(b"hw-escaped\0"):
                found.append(int(name))
    return found


async def test_what_left_the_session_and_hides_its_origin_ends_with_its_agent_also_without_a_supervisor(
    harness: BareMetalHarness,
) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(limited(agent_id, f"exec {PYTHON} -c '{ESCAPING}'"), silent)
    async with asyncio.timeout(60):
        while not escaped():
            await asyncio.sleep(0.02)
    (shim,) = shims_of(agent_id)
    os.kill(shim, signal.SIGKILL)  # the one that knows the tree; the agent itself dies with it
    await live_becomes(harness, agent_id, 0)
    survivor = escaped()

    await destroy(harness.backend, agent_id)

    assert len(survivor) == 1, "or this test shows nothing"
    assert escaped() == []
    assert groups_of(agent_id) == []


async def test_nothing_of_the_group_stays_after_the_end(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()
    await harness.backend.spawn(limited(agent_id, "sleep 3600 & exec sleep 3600", mem_bytes=48 * MIB), silent)
    assert groups_of(agent_id)

    await destroy(harness.backend, agent_id)

    assert groups_of(agent_id) == []


async def test_a_group_whose_worker_died_before_its_agent_was_recorded_goes_and_a_young_one_stays(
    harness: BareMetalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_id = fresh_agent_id()
    Cgroups(INSTALLATION).make(agent_id, Limits())

    assert [owned async for owned in harness.backend.owned()] == []
    young = groups_of(agent_id)
    monkeypatch.setattr("hatchway.host.cgroups._LEFT_OVER_AFTER", 0.0)
    assert [owned async for owned in harness.backend.owned()] == []

    assert young
    assert groups_of(agent_id) == []


async def test_limits_that_are_only_counted_make_no_group(harness: BareMetalHarness) -> None:
    agent_id = fresh_agent_id()

    await harness.backend.spawn(limited(agent_id, "exec sleep 3600", mem_bytes=48 * MIB, enforce=False), silent)

    assert len(list(processes_of(agent_id))) == 1
    assert groups_of(agent_id) == []


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """A mountinfo that shows this machine's version 2 tree only: on a hybrid one it has no controllers, and kills."""
    lines = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join(lines[:1]))
    return mountinfo


async def test_version_2_ends_all_of_an_agent_in_one_write(harness: BareMetalHarness, unified: Path) -> None:
    agent_id = fresh_agent_id()
    groups = Cgroups(INSTALLATION, unified)
    backend = BareMetalBackend("m-test", harness.state_dir, INSTALLATION, groups)
    harness.backends.append(backend)
    await backend.spawn(limited(agent_id, f"exec {PYTHON} -c '{ESCAPING}'"), silent)
    async with asyncio.timeout(60):
        while not escaped():
            await asyncio.sleep(0.02)
    (shim,) = shims_of(agent_id)
    os.kill(shim, signal.SIGKILL)
    await live_becomes(harness, agent_id, 0)
    survivor, inside = escaped(), values(agent_id, "cgroup.procs")

    await destroy(backend, agent_id)

    assert len(survivor) == 1
    assert inside == [str(survivor[0])]
    assert escaped() == []
    assert groups_of(agent_id) == []


@pytest.fixture
def scopes(tmp_path: Path) -> Iterator[list[Cgroups]]:
    """Two groups that are delegated to one worker after the other, as to a unit that is started again in another slice:
    each sees its own as the top."""
    top = next(
        Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    )
    made = [top / f"hatchway-test-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    found = []
    for scope in made:
        scope.mkdir()
        mountinfo = tmp_path / scope.name
        mountinfo.write_text(f"30 25 0:26 / {scope} rw - cgroup2 cgroup2 rw\n")
        found.append(Cgroups(INSTALLATION, mountinfo))
    yield found
    for scope in made:
        scope.rmdir()  # fails where something of an agent is left


async def test_a_worker_in_another_group_ends_and_removes_what_the_one_before_it_started(
    harness: BareMetalHarness, scopes: list[Cgroups]
) -> None:
    agent_id = fresh_agent_id()
    before, after = (BareMetalBackend("m-test", harness.state_dir, INSTALLATION, groups) for groups in scopes)
    harness.backends += [before, after]
    await before.spawn(limited(agent_id, f"exec {PYTHON} -c '{ESCAPING}'"), silent)
    async with asyncio.timeout(60):
        while not escaped():
            await asyncio.sleep(0.02)
    (shim,) = shims_of(agent_id)
    os.kill(shim, signal.SIGKILL)  # what has left the tree is in the group, and nowhere else to be found
    await live_becomes(harness, agent_id, 0)
    survivor, inside = escaped(), values(agent_id, "cgroup.procs")

    await destroy(after, agent_id)

    assert len(survivor) == 1
    assert inside == [str(survivor[0])]
    assert escaped() == []
    assert groups_of(agent_id) == []


async def test_the_groups_of_an_agent_are_written_down_before_they_are_made(
    harness: BareMetalHarness, scopes: list[Cgroups], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed in between leaves a group that the next one finds, wherever that one has its own."""
    agent_id = fresh_agent_id()
    before, after = (BareMetalBackend("m-test", harness.state_dir, INSTALLATION, groups) for groups in scopes)
    harness.backends += [before, after]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hatchway.backends.bare_metal_launch.start_shim", killed)
    monkeypatch.setattr("hatchway.backends.bare_metal_launch.Launcher._clean_up", killed)
    with pytest.raises(KeyboardInterrupt):
        before._launcher.start(limited(agent_id, "exec sleep 3600"))
    left = groups_of(agent_id)

    await destroy(after, agent_id)

    assert len(left) == 1
    assert groups_of(agent_id) == []


@pytest.fixture
async def without_cgroups(harness: BareMetalHarness, tmp_path: Path) -> BareMetalBackend:
    """A worker of the same host that finds no control groups."""
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("")
    backend = BareMetalBackend("m-test", harness.state_dir, INSTALLATION, Cgroups(INSTALLATION, mountinfo))
    harness.backends.append(backend)
    return backend


async def test_limits_that_cannot_be_enforced_stop_the_spawn_and_say_what_to_do(
    harness: BareMetalHarness, without_cgroups: BareMetalBackend
) -> None:
    agent_id = fresh_agent_id()

    with pytest.raises(PermanentSpawnError, match=r"memory limit .*Delegate=yes.*`enforceCgroups: false`") as refused:
        await without_cgroups.spawn(limited(agent_id, "exec sleep 3600", mem_bytes=48 * MIB), silent)

    assert refused.value.code == SpawnCode.DAEMON_UNAVAILABLE
    assert await harness.remains(agent_id) == []


async def test_an_agent_without_limits_needs_no_control_groups(without_cgroups: BareMetalBackend) -> None:
    agent_id = fresh_agent_id()

    await without_cgroups.spawn(limited(agent_id, "exec sleep 3600"), silent)

    assert len(list(processes_of(agent_id))) == 1
