"""The files of both versions of control groups, in trees that look like the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hatchway.host import cgroups
from hatchway.host.cgroups import Cgroups, CgroupsUnusable, Entrance, Limits
from hatchway.host.shim import killed_for_memory

MIB = 2**20
BOTH = Limits(mcpu=1500, mem_bytes=256 * MIB)


def mounts(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in ("22 1 0:20 / /proc rw - proc proc rw", *lines)))
    return path


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for name in ("cpu,cpuacct", "memory", "pids", "freezer"):
        (tmp_path / "fs" / name).mkdir(parents=True)
    mounts(
        tmp_path,
        *(
            f"30 25 0:2{i} / {tmp_path}/fs/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}"
            for i, name in enumerate(("cpu,cpuacct", "memory", "pids", "freezer"))
        ),
        f"40 25 0:30 / {tmp_path}/fs/unified rw - cgroup2 cgroup2 rw",
    )
    return tmp_path / "fs"


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    top = tmp_path / "fs"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (top / "cgroup.subtree_control").write_text("memory\n")
    mounts(tmp_path, f"30 25 0:26 / {top} rw,nosuid,nodev,noexec - cgroup2 cgroup2 rw,nsdelegate")
    return top


def groups(tmp_path: Path) -> Cgroups:
    return Cgroups("inst", tmp_path / "mountinfo", tmp_path / "cgroup")


def contents(group: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in group.iterdir()}


def test_version_1_has_a_directory_in_each_controller_s_tree(tmp_path: Path, v1: Path) -> None:
    entrance = groups(tmp_path).make("a", BOTH)

    cpu, memory, pids = (v1 / name / "hatchway/inst/a" for name in ("cpu,cpuacct", "memory", "pids"))
    assert contents(cpu) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    assert contents(memory) == {"memory.limit_in_bytes": str(256 * MIB)}
    assert contents(pids) == {"pids.max": "4096"}
    assert not (v1 / "freezer/hatchway").exists()
    assert entrance == Entrance(
        (f"{cpu}/cgroup.procs", f"{memory}/cgroup.procs", f"{pids}/cgroup.procs"),
        f"{memory}/memory.oom_control",
        256 * MIB,
    )


def test_version_1_counts_swap_in_where_the_kernel_can(tmp_path: Path, v1: Path) -> None:
    group = v1 / "memory/hatchway/inst/a"
    group.mkdir(parents=True)
    (group / "memory.memsw.limit_in_bytes").touch()

    groups(tmp_path).make("a", BOTH)

    assert contents(group)["memory.memsw.limit_in_bytes"] == str(256 * MIB)


def test_version_2_hands_the_controllers_down_to_one_directory(tmp_path: Path, v2: Path) -> None:
    (v2 / "hatchway/inst/a").mkdir(parents=True)
    (v2 / "hatchway/inst/a/memory.swap.max").touch()

    entrance = groups(tmp_path).make("a", BOTH)

    group = v2 / "hatchway/inst/a"
    assert contents(group) == {
        "cpu.max": "150000 100000",
        "memory.max": str(256 * MIB),
        "memory.swap.max": "0",
        "pids.max": "4096",
    }
    assert (v2 / "hatchway/cgroup.subtree_control").exists()
    assert (v2 / "hatchway/inst/cgroup.subtree_control").exists()
    assert entrance == Entrance((f"{group}/cgroup.procs",), f"{group}/memory.events", 256 * MIB)


def test_version_2_moves_the_worker_out_of_a_group_that_was_delegated_to_it(
    tmp_path: Path, v2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = v2 / "system.slice/hatchway.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.subtree_control").touch()
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup").write_text("0::/system.slice/hatchway.service\n")
    plain_write = cgroups._write

    def write(path: Path, value: object) -> None:
        """As the kernel: no controllers for the groups below while a process is in this one."""
        if path == own / "cgroup.subtree_control" and not (own / "hatchway-worker/cgroup.procs").exists():
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        plain_write(path, value)

    monkeypatch.setattr(cgroups, "_write", write)
    monkeypatch.setattr(os, "access", lambda path, mode: path != v2)

    entrance = groups(tmp_path).make("a", BOTH)

    assert (own / "hatchway-worker/cgroup.procs").read_text().strip() == str(os.getpid())
    assert entrance is not None
    assert entrance.procs == (f"{own}/hatchway/inst/a/cgroup.procs",)
    (tmp_path / "cgroup").write_text("0::/system.slice/hatchway.service/hatchway-worker\n")
    assert groups(tmp_path).make("b", Limits()) == Entrance((f"{own}/hatchway/inst/b/cgroup.procs",))


@pytest.mark.parametrize(
    ("mcpu", "period", "quota"),
    [(1, 1_000_000, 1000), (9, 1_000_000, 9000), (10, 100_000, 1000), (64_000, 100_000, 6_400_000)],
)
def test_a_share_of_cpu_is_never_less_than_the_kernel_takes(
    *, tmp_path: Path, v2: Path, mcpu: int, period: int, quota: int
) -> None:
    groups(tmp_path).make("a", Limits(mcpu=mcpu))

    assert (v2 / "hatchway/inst/a/cpu.max").read_text() == f"{quota} {period}\n"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(mcpu=500), "the cpu limit"),
        (Limits(mem_bytes=MIB), "the memory limit"),
        (BOTH, "the cpu and memory limit"),
    ],
)
@pytest.mark.parametrize("controllers", [None, "pids\n"])
def test_a_limit_without_its_controller_is_refused_and_no_limit_needs_none(
    *, tmp_path: Path, controllers: str | None, limits: Limits, said: str
) -> None:
    if controllers is None:
        mounts(tmp_path)
    else:
        (tmp_path / "cgroup.controllers").write_text(controllers)
        mounts(tmp_path, f"30 25 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw")

    with pytest.raises(CgroupsUnusable, match=f"{said} of this agent cannot be enforced.*`enforceCgroups: false`"):
        groups(tmp_path).make("a", limits)
    assert (groups(tmp_path).make("a", Limits()) is None) == (controllers is None)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOSPC])
def test_a_tree_that_may_not_be_written_is_refused_for_limits_only(
    tmp_path: Path, v1: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(CgroupsUnusable, match=os.strerror(number)):
        groups(tmp_path).make("a", BOTH)
    assert groups(tmp_path).make("a", Limits()) is None


def test_killing_asks_the_kernel_for_the_whole_group_where_it_can(tmp_path: Path, v2: Path) -> None:
    found = groups(tmp_path)
    found.make("a", Limits())
    group = v2 / "hatchway/inst/a"
    (group / "cgroup.kill").touch()
    (group / "cgroup.procs").touch()

    empty = found.kill("a")
    (group / "nested").mkdir()
    (group / "nested/cgroup.procs").write_text(f"{2**22 + 1}\n")  # a pid that no process can have
    full = found.kill("a")

    assert (empty, full) == (False, True)
    assert (group / "cgroup.kill").read_text() == "1\n"
    assert found.kill("nobody") is False


def test_what_an_agent_has_made_of_its_groups_does_not_hide_that_they_are_empty(tmp_path: Path, v2: Path) -> None:
    """A threaded group below does not list its processes; the kernel's own word for the whole is enough."""
    found = groups(tmp_path)
    found.make("a", Limits())
    group = v2 / "hatchway/inst/a"
    (group / "cgroup.kill").touch()
    (group / "below/cgroup.procs").mkdir(parents=True)  # reading it fails

    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    full = found.kill("a")
    (group / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    empty = found.kill("a")

    assert (full, empty) == (True, False)
    assert (group / "cgroup.kill").read_text() == "1\n"


@pytest.mark.parametrize(
    ("text", "killed"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        ("low 0\nhigh 7\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n", 1),
        ("low 0\noom_kill 0\n", 0),
        ("oom_kill_disable 0\nunder_oom 0\n", 0),
    ],
    ids=["v1", "v2", "none", "before 4.13"],
)
def test_the_kernel_s_own_count_says_who_died_of_memory(tmp_path: Path, text: str, killed: int) -> None:
    events = tmp_path / "events"
    events.write_text(text)

    assert killed_for_memory({"procs": [], "events": str(events), "mem_bytes": 1}) == killed
    assert killed_for_memory({"procs": [], "events": str(tmp_path / "gone"), "mem_bytes": 1}) == 0
    assert killed_for_memory(None) == 0


def test_by_a_list_of_its_processes_alone_a_threaded_group_cannot_be_judged(
    tmp_path: Path, v2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel's own word is worth: an agent would keep its teardown from ever being confirmed."""
    found = groups(tmp_path)
    found.make("a", Limits())
    group = v2 / "hatchway/inst/a"
    (group / "below/cgroup.procs").mkdir(parents=True)  # reading it fails
    (group / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    by_the_kernel = found.kill("a")

    monkeypatch.setattr(cgroups, "_populated", lambda group: any(cgroups._processes(group)))

    assert by_the_kernel is False
    with pytest.raises(IsADirectoryError):
        found.kill("a")
