"""Who this machine is, since when it runs, and which process a pid really names.

A pid alone names nothing: the kernel hands it out again. A pid with its start time and the boot it belongs to does.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_HOST_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
_STATE_AND_AFTER = 2  # /proc/PID/stat counts from 1 and the state is field 3: the first one after the command's ")"


def default_state_dir() -> Path:
    """Where a worker keeps what it must find again on this host: /var/lib for root, else the XDG state directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/hatchway")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "hatchway"


def host_id_of_machine(fallback: Path | None = None, machine_id: Path = MACHINE_ID) -> str:
    """This machine's host id: the same for every worker on it and over restarts, `m-` and 16 hex digits.

    Hashed, because machine-id(5) asks not to show the raw id to others. Without one, a random id is written once to
    `fallback` (default: `host-id` in the state directory) and read from there ever after, or OSError is raised.
    """
    try:
        raw = machine_id.read_text("ascii", "ignore").strip()
    except OSError:
        raw = ""  # containers and minimal systems have none
    if re.fullmatch(r"[0-9a-f]{32}", raw):
        return "m-" + hashlib.sha256(b"hatchway host id\0" + raw.encode()).hexdigest()[:16]
    return _generated_host_id(fallback or default_state_dir() / "host-id")


def _generated_host_id(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fresh.write_text(f"m-{secrets.token_hex(8)}\n")
    try:
        os.link(fresh, path)  # fails if another worker was first: then its id is the one
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    found = path.read_text().strip()
    if not _HOST_ID.fullmatch(found):
        raise OSError(f"{path} holds no host id: remove it, or give every worker of this machine the same --host-id")
    return found


def boot_id() -> str:
    """The kernel's id of this boot. Raises OSError where there is no Linux /proc."""
    return BOOT_ID.read_text("ascii").strip()


@dataclass(frozen=True)
class ProcessId:
    """One process for sure: its pid and its start time, in clock ticks since boot (/proc/PID/stat field 22)."""

    pid: int
    start_time: int

    def is_alive(self) -> bool:
        """True while this very process runs. A zombie is dead: it can do nothing any more."""
        found = process_stat(self.pid)
        return found is not None and found.start_time == self.start_time and found.state not in "ZX"


@dataclass(frozen=True)
class ProcessStat:
    pid: int
    state: str
    parent: int
    session: int
    start_time: int

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)


def process_stat(pid: int) -> ProcessStat | None:
    """What /proc says about a pid; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in parentheses and may itself hold spaces and parentheses: the last one closes it.
    fields = text[text.rindex(")") + _STATE_AND_AFTER :].split()
    return ProcessStat(
        pid=pid, state=fields[0], parent=int(fields[1]), session=int(fields[3]), start_time=int(fields[19])
    )
