"""Control groups of bare-metal agents, by their files: `hatchway/<installation>/<agent id>` in each hierarchy.

    v2   one tree; cpu.max, memory.max, pids.max, cgroup.kill        (kernel docs: admin-guide/cgroup-v2)
    v1   a tree for each controller; cpu.cfs_*, memory.limit_in_bytes, pids.max    (admin-guide/cgroup-v1)

A group holds the agent and all that it starts, whatever session or parent that takes on: nothing leaves it without the
right to write these files, which an agent's user has not. The agent's supervisor stays outside, so that an agent at
its memory limit cannot take it along. Blocking: a few file operations.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from hatchway.errors import HatchwayError

log = structlog.get_logger(__name__)

CONTROLLERS = ("cpu", "memory", "pids")
PIDS = 4096
"""As many processes and threads as an agent in a container gets."""
_PERIOD = 100_000  # microseconds; the kernel's own default
_LONG_PERIOD = 1_000_000  # the longest there is: below 10 millicpu a share of the usual period is under the least, 1 ms
_LEAST_MCPU = 10
_NAME = "hatchway"
_LEAF = "hatchway-worker"
_ATTEMPTS = 5
_LEFT_OVER_AFTER = 60.0  # seconds; a group that is younger may be that of a start under way


class CgroupsUnusable(HatchwayError):
    """Limits cannot be enforced on this host. Says what to give the worker."""


@dataclass(frozen=True)
class Limits:
    """`mcpu` in thousandths of a CPU, `mem_bytes` with swap included. None: no limit of that kind."""

    mcpu: int | None = None
    mem_bytes: int | None = None

    @property
    def controllers(self) -> tuple[str, ...]:
        """What cannot be done without. The number of processes is limited where that is possible."""
        return (*(["cpu"] if self.mcpu is not None else []), *(["memory"] if self.mem_bytes is not None else []))


@dataclass(frozen=True)
class Entrance:
    """What the supervisor needs: where its child enters, and where the kernel counts whom it killed for memory."""

    procs: tuple[str, ...]
    events: str | None = None
    mem_bytes: int | None = None

    def order(self) -> dict[str, Any]:
        return {"procs": self.procs, "events": self.events, "mem_bytes": self.mem_bytes}


class Cgroups:
    """The groups of one installation's agents on this host."""

    def __init__(
        self,
        installation_id: str,
        mountinfo: Path = Path("/proc/self/mountinfo"),
        membership: Path = Path("/proc/self/cgroup"),
    ) -> None:
        self._installation_id = installation_id
        self._membership = membership
        unified, by_controller = _mounts(mountinfo)
        # A hybrid host has both trees, and the controllers in the older one.
        self._trees = {name: by_controller[name] for name in CONTROLLERS if name in by_controller}
        self._unified = unified if not self._trees else None
        self._elsewhere: set[Path] = set()
        """Where agents' records have led to groups of a worker before this one, which had another group of its own."""

    def places(self, agent_id: str) -> tuple[str, ...]:
        """The directories that `make` would make, to be written down before it does."""
        try:
            return tuple(str(parent / agent_id) for parent in self._own_parents())
        except OSError:
            return ()  # `make` says what is wrong there, where limits need it

    def make(self, agent_id: str, limits: Limits) -> Entrance | None:
        """A group with these limits; None where there is none to be had and none is needed.

        Raises CgroupsUnusable for limits that cannot be set.
        """
        try:
            for _ in range(_ATTEMPTS):
                # Another agent's end may take the empty directory above away while this one is made in it.
                with contextlib.suppress(FileNotFoundError):
                    return self._make(agent_id, limits)
            return self._make(agent_id, limits)
        except OSError as e:
            if not limits.controllers:
                log.debug("no control group for this agent", agent_id=agent_id, error=str(e))
                return None
            raise self._unusable(limits, f"{e.strerror} ({e.filename})") from None

    def _make(self, agent_id: str, limits: Limits) -> Entrance | None:
        return self._make_v2(agent_id, limits) if self._unified else self._make_v1(agent_id, limits)

    def _unusable(self, limits: Limits, why: str) -> CgroupsUnusable:
        return CgroupsUnusable(
            f"the {' and '.join(limits.controllers) or 'process'} limit of this agent cannot be enforced on this host: "
            f"{why}. Run the worker as root or give it a cgroup of its own (systemd: Delegate=yes), or say "
            "`enforceCgroups: false` on the scaler to count resources only"
        )

    # ── v1 ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_v1(self, agent_id: str, limits: Limits) -> Entrance | None:
        for name in limits.controllers:
            if name not in self._trees:
                raise self._unusable(limits, f"its kernel offers no {name} controller here")
        if not self._trees:
            return None
        groups = {name: tree / _NAME / self._installation_id / agent_id for name, tree in self._trees.items()}
        for group in groups.values():
            group.mkdir(parents=True, exist_ok=True)
        if limits.mcpu is not None:
            period, quota = _cpu_share(limits.mcpu)
            _write(groups["cpu"] / "cpu.cfs_period_us", period)
            _write(groups["cpu"] / "cpu.cfs_quota_us", quota)
        if limits.mem_bytes is not None:
            _write(groups["memory"] / "memory.limit_in_bytes", limits.mem_bytes)
            with_swap = groups["memory"] / "memory.memsw.limit_in_bytes"
            if with_swap.exists():  # a kernel without swap accounting has no such file, and no way to limit it
                _write(with_swap, limits.mem_bytes)
        if "pids" in groups:
            _write(groups["pids"] / "pids.max", PIDS)
        events = str(groups["memory"] / "memory.oom_control") if limits.mem_bytes is not None else None
        procs = dict.fromkeys(str(group / "cgroup.procs") for group in groups.values())
        return Entrance(tuple(procs), events, limits.mem_bytes)

    # ── v2 ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_v2(self, agent_id: str, limits: Limits) -> Entrance | None:
        base = self._base()
        offered = _words(base / "cgroup.controllers")
        missing = [name for name in limits.controllers if name not in offered]
        if missing:
            raise self._unusable(limits, f"{base} offers no {' and no '.join(missing)} controller")
        group = base / _NAME / self._installation_id / agent_id
        group.parent.mkdir(parents=True, exist_ok=True)
        wanted = [name for name in CONTROLLERS if name in offered]
        for above in (base, base / _NAME, group.parent):
            self._hand_down(above, wanted)
        group.mkdir(exist_ok=True)
        if limits.mcpu is not None:
            period, quota = _cpu_share(limits.mcpu)
            _write(group / "cpu.max", f"{quota} {period}")
        if limits.mem_bytes is not None:
            _write(group / "memory.max", limits.mem_bytes)
            if (group / "memory.swap.max").exists():
                _write(group / "memory.swap.max", 0)
        if "pids" in offered:
            _write(group / "pids.max", PIDS)
        events = str(group / "memory.events") if limits.mem_bytes is not None else None
        return Entrance((str(group / "cgroup.procs"),), events, limits.mem_bytes)

    def _base(self) -> Path:
        """Where groups are made: the top of what this process sees where it may write there, else its own group."""
        assert self._unified is not None  # noqa: S101 - only asked for where there is a unified tree
        if os.access(self._unified, os.W_OK):
            return self._unified
        own = next((line[3:] for line in self._membership.read_text().splitlines() if line.startswith("0::")), "/")
        return self._unified / own.strip().lstrip("/").removesuffix(f"/{_LEAF}")

    def _hand_down(self, group: Path, controllers: Iterable[str]) -> None:
        """Let the groups below have these controllers.

        A group that hands any down may hold no process itself (the root may). Where this worker's own group was
        delegated to it, it and what else runs there moves into a group below first.
        """
        control = group / "cgroup.subtree_control"
        for name in controllers:
            if name in _words(control):
                continue
            try:
                _write(control, f"+{name}")
            except OSError as e:
                if e.errno != errno.EBUSY:
                    raise
                _move_below(group)
                _write(control, f"+{name}")

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def kill(self, agent_id: str, recorded: Iterable[str] = ()) -> bool:
        """SIGKILL everything in the agent's groups. True if there was anything: ask again until there is not.

        `recorded`: the directories that its record names, wherever this worker would make them today.
        """
        found = False
        for group in self._groups(agent_id, recorded):
            if not _populated(group):
                continue
            found = True
            if (group / "cgroup.kill").exists():
                _write(group / "cgroup.kill", 1)
                continue
            if (group / "pids.max").exists():
                _write(group / "pids.max", 0)  # what forks faster than it is killed forks no more
            for pid in _processes(group):
                _kill_member(group, pid)
        return found

    def remove(self, agent_id: str, recorded: Iterable[str] = ()) -> None:
        """Take the agent's groups away. What is still busy is taken by `remove_left_over`."""
        for group in self._groups(agent_id, recorded):
            _remove_tree(group)
            for above in (group.parent, group.parent.parent):
                with contextlib.suppress(OSError):  # not empty: other agents, or other installations
                    above.rmdir()

    def remove_left_over(self, is_known: Callable[[str], bool]) -> None:
        """Remove empty groups of agents that have no record here: their worker was killed at the wrong moment."""
        for parent in self._parents():
            with contextlib.suppress(FileNotFoundError):
                for entry in list(os.scandir(parent)):
                    # The directory is looked at before the record: a start writes its record first.
                    if entry.is_dir() and _is_old(entry) and not is_known(entry.name):
                        _remove_tree(Path(entry.path))

    def _groups(self, agent_id: str, recorded: Iterable[str]) -> list[Path]:
        ours = (_NAME, self._installation_id, agent_id)
        self._elsewhere |= {path.parent for path in map(Path, recorded) if path.parts[-3:] == ours}
        return [group for parent in self._parents() if (group := parent / agent_id).is_dir()]

    def _parents(self) -> list[Path]:
        return [*(own := self._own_parents()), *sorted(self._elsewhere.difference(own))]

    def _own_parents(self) -> list[Path]:
        tops = [self._base()] if self._unified else list(dict.fromkeys(self._trees.values()))
        return [top / _NAME / self._installation_id for top in tops]


def _mounts(mountinfo: Path) -> tuple[Path | None, dict[str, Path]]:
    """The unified tree, and each controller's own; see proc_pid_mountinfo(5)."""
    unified: Path | None = None
    by_controller: dict[str, Path] = {}
    try:
        lines = mountinfo.read_text().splitlines()
    except FileNotFoundError:
        return None, {}
    for line in lines:
        before, _, after = line.partition(" - ")
        place, what = before.split(), after.split()
        if len(place) < 5 or len(what) < 3:
            continue
        where, kind, options = Path(place[4].replace("\\040", " ")), what[0], what[2]
        if kind == "cgroup2":
            unified = unified or where
        elif kind == "cgroup":
            by_controller |= {name: where for name in options.split(",") if name in CONTROLLERS}
    return unified, by_controller


def _cpu_share(mcpu: int) -> tuple[int, int]:
    """Period and quota in microseconds."""
    period = _PERIOD if mcpu >= _LEAST_MCPU else _LONG_PERIOD
    return period, mcpu * period // 1000


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def _write(path: Path, value: object) -> None:
    path.write_text(f"{value}\n")


def _populated(group: Path) -> bool:
    """Whether anything runs in this group or below. The kernel says so itself in v2, whatever an agent that may write
    its own group has made of the groups below (a threaded one does not list its processes).
    """
    try:
        return "populated 1" in (group / "cgroup.events").read_text()
    except FileNotFoundError:
        return any(_processes(group))


def _processes(group: Path) -> Iterator[int]:
    """The pids in this group and in those that were made below it."""
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield from map(int, Path(directory, "cgroup.procs").read_text().split())


def _kill_member(group: Path, pid: int) -> None:
    """Through a pidfd, and only what is still a member once that is open: the pid cannot mean anybody else then."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in _processes(group):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _move_below(group: Path) -> None:
    leaf = group / _LEAF
    leaf.mkdir(exist_ok=True)
    for pid in _words(group / "cgroup.procs"):
        with contextlib.suppress(ProcessLookupError):
            _write(leaf / "cgroup.procs", pid)


def _remove_tree(group: Path) -> None:
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError as e:
            log.debug("a control group stays a while longer", group=directory, error=str(e))
            return


def _is_old(entry: os.DirEntry[str]) -> bool:
    try:
        return time.time() - entry.stat().st_mtime > _LEFT_OVER_AFTER
    except FileNotFoundError:
        return False
