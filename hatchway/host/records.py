"""What a host remembers of each bare-metal agent: one directory of small files, found again by the agent id.

    STATE_DIR/<agent id>/    0711: the agent's user may walk through to `work`, and list nothing
        lock          flock, held by the worker that starts the agent and then by the shim, for as long as it lives
        intent.json   written before anything is started
        starting.json written by the shim before the agent runs, renamed to
        started.json  once the agent's program runs: only then has the spawn succeeded
        ended.json    written by the shim once nothing of the agent is left
        log, log.1    0600
        agent.py      the reference agent, where that is what runs
        work/         the agent's own directory and its HOME, owned by its user

No started.json, lock free: nothing was started. With it, lock held: it runs. With it, lock free: it is over, and
`ended.json` says how unless the shim was killed. Whoever holds the lock may change the directory; all may read it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from hatchway.errors import HatchwayError
from hatchway.host.identity import ProcessId
from hatchway.host.shim import write_record

_AGENT_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_REMOVING = ".removing-"
_T = TypeVar("_T")


class RecordDamagedError(HatchwayError):
    """A record cannot be read. Names the file; what it stands for has to be looked at by a person."""


@dataclass(frozen=True)
class Intent:
    """What was about to be started, and what a teardown without any config has to know."""

    agent_id: str
    installation_id: str
    scaler: str
    boot_id: str
    created_at: datetime
    stop_grace: timedelta
    cgroups: tuple[str, ...] = ()
    """Directories of its control groups: the next worker may look for its own elsewhere."""


@dataclass(frozen=True)
class Started:
    """The agent and its shim, with the boot that their pids belong to."""

    agent: ProcessId
    shim: ProcessId
    boot_id: str


@dataclass(frozen=True)
class Ended:
    """How the agent ended: its code, or 128 and the signal that killed it."""

    exit_code: int | None


class Lock:
    """The held lock of one record.

    Let go by closing only. LOCK_UN would unlock the shim's copy as well: the two share one open file.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Records:
    """The records of all bare-metal agents of one state directory. Blocking: call it from a thread."""

    def __init__(self, state_dir: Path, installation_id: str) -> None:
        self.state_dir = state_dir
        self.installation_id = installation_id

    def path(self, agent_id: str) -> Path:
        """The agent's directory. Raises ValueError for an id that is no plain file name."""
        if not _AGENT_ID.fullmatch(agent_id):
            raise ValueError(
                f"{agent_id!r} cannot name an agent: only letters, digits and ._- are allowed, at most 128 of them"
            )
        return self.state_dir / agent_id

    def make_state_dir(self) -> None:
        """Make the state directory where it is missing: agents' users may pass through it, and list nothing."""
        if not self.state_dir.is_dir():
            self.state_dir.mkdir(parents=True, exist_ok=True)
            self.state_dir.chmod(0o711)

    def prepare(self, agent_id: str) -> None:
        """Make the agent's directory, durably. Raises FileNotFoundError when the state directory itself is gone."""
        path = self.path(agent_id)
        while True:
            with contextlib.suppress(FileExistsError):
                path.mkdir()  # not exist_ok: that looks a second time, when a teardown may have removed it
            try:
                path.chmod(0o711)  # whatever the umask
            except FileNotFoundError:
                continue  # removed between the two lines
            _sync(self.state_dir)
            return

    def try_lock(self, agent_id: str) -> Lock | None:
        """The record's lock, or None while another holds it. Raises FileNotFoundError when there is no record.

        A missing state directory is no evidence that an agent is gone: it raises NotADirectoryError.
        """
        if not self.state_dir.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "the state directory is missing (a disk not mounted?)", str(self.state_dir)
            )
        path = self.path(agent_id) / "lock"
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(path, fd):
                    return Lock(fd)
            except BlockingIOError:
                os.close(fd)
                return None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # removed by a teardown while we opened it: this lock guards nothing, look again

    def write_intent(self, intent: Intent) -> None:
        write_record(
            str(self.path(intent.agent_id)),
            "intent.json",
            {
                "agent_id": intent.agent_id,
                "installation_id": intent.installation_id,
                "scaler": intent.scaler,
                "boot_id": intent.boot_id,
                "created_at": intent.created_at.isoformat(),
                "stop_grace_s": intent.stop_grace.total_seconds(),
                "cgroups": intent.cgroups,
            },
        )

    def intent(self, agent_id: str) -> Intent | None:
        return self._read(
            agent_id,
            "intent.json",
            lambda r: Intent(
                agent_id=str(r["agent_id"]),
                installation_id=str(r["installation_id"]),
                scaler=str(r["scaler"]),
                boot_id=str(r["boot_id"]),
                created_at=datetime.fromisoformat(r["created_at"]).astimezone(UTC),
                stop_grace=timedelta(seconds=float(r["stop_grace_s"])),
                cgroups=tuple(map(str, r.get("cgroups", ()))),
            ),
        )

    def is_ours(self, agent_id: str) -> bool:
        """False for a record that another installation signed, and for an id that no record can have."""
        try:
            intent = self.intent(agent_id)
        except ValueError:
            return False
        return intent is None or intent.installation_id == self.installation_id

    def started(self, agent_id: str) -> Started | None:
        """Whose program runs or ran."""
        return self._started(agent_id, "started.json")

    def forked(self, agent_id: str) -> Started | None:
        """Whose process was made: what a teardown has to look for, also where the shim was killed before the exec."""
        found = self.started(agent_id) or self._started(agent_id, "starting.json")
        return found or self.started(agent_id)  # it may have been renamed from the one to the other in between

    def write_started(self, agent_id: str, started: Started) -> None:
        """As its supervisor has written it, and somebody deleted it."""
        write_record(
            str(self.path(agent_id)),
            "started.json",
            {
                "pid": started.agent.pid,
                "start_time": started.agent.start_time,
                "shim_pid": started.shim.pid,
                "shim_start_time": started.shim.start_time,
                "boot_id": started.boot_id,
            },
        )

    def _started(self, agent_id: str, name: str) -> Started | None:
        return self._read(
            agent_id,
            name,
            lambda r: Started(
                agent=ProcessId(int(r["pid"]), int(r["start_time"])),
                shim=ProcessId(int(r["shim_pid"]), int(r["shim_start_time"])),
                boot_id=str(r["boot_id"]),
            ),
        )

    def ended(self, agent_id: str) -> Ended | None:
        return self._read(
            agent_id, "ended.json", lambda r: Ended(None if r["exit_code"] is None else int(r["exit_code"]))
        )

    def _read(self, agent_id: str, name: str, make: Callable[[dict[str, Any]], _T]) -> _T | None:
        path = self.path(agent_id) / name
        try:
            return make(json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as e:
            raise RecordDamagedError(f"{path} cannot be read: see whether its agent still runs, then remove it") from e

    def knows(self, agent_id: str) -> bool:
        """Whether there is a directory for this agent, whatever stands in it."""
        return (self.state_dir / agent_id).is_dir()

    def agent_ids(self) -> Iterator[str]:
        """Every directory here that is named like an agent."""
        try:
            entries = list(os.scandir(self.state_dir))
        except FileNotFoundError:
            return
        for entry in entries:
            if _AGENT_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield entry.name

    def log_end(self, agent_id: str, size: int) -> str:
        """The last `size` bytes of what the agent printed, over both files of the log."""
        path = self.path(agent_id)
        text = b""
        for name in ("log", "log.1"):
            try:
                with (path / name).open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - (size - len(text))))
                    text = file.read(size - len(text)) + text
            except FileNotFoundError:
                continue
        return text.decode("utf-8", "replace")

    def remove(self, agent_id: str) -> Path | None:
        """Take the record away. Only for the holder of its lock, and only once nothing runs any more.

        The rename is the moment: before it the whole record stands, after it none. Clearing the directory can take long
        (a job's working tree) or fail; what stays is answered, and `clear_removed` tries again.
        """
        removed = self.state_dir / f"{_REMOVING}{agent_id}-{secrets.token_hex(4)}"
        try:
            self.path(agent_id).rename(removed)
        except FileNotFoundError:
            return None
        _sync(self.state_dir)
        return None if _clear(removed) else removed

    def clear_removed(self) -> list[Path]:
        """Delete what earlier removals left behind. Answers what still cannot be deleted."""
        return [path for path in self.state_dir.glob(f"{_REMOVING}*") if not _clear(path)]


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _clear(path: Path) -> bool:
    """Delete a tree that an agent wrote. It may hold directories without write permission (module caches do)."""

    def open_up(_function: object, name: str, _error: object) -> None:
        for directory in (os.path.dirname(name), name):
            if os.path.isdir(directory) and not os.path.islink(directory):
                with contextlib.suppress(PermissionError):  # not ours: then the second pass fails, and says so
                    os.chmod(directory, stat.S_IRWXU)

    if os.geteuid() != 0:  # root needs no permission; and must not chmod by path where the agent may swap in a link
        shutil.rmtree(path, onerror=open_up)
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
