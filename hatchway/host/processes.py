"""Ending processes and never a stranger: each is named by pid and start time, and signalled through a pidfd."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from hatchway.host.identity import ProcessId, ProcessStat, process_stat


class AnotherUsersError(PermissionError):
    """An agent runs here as a user whose processes this one may neither read nor end. Nothing can be said of it."""


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal this very process. False if it is gone, also when its pid meanwhile names another one.

    The start time is compared after the pidfd is open: from then on the descriptor cannot come to mean somebody else.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.is_alive():
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def survivors_of(agent: ProcessId | None, agent_id: str) -> list[ProcessId]:
    """What still runs of an agent whose shim was killed: itself, whatever bears its id, and all their descendants.

    Only the shim knows the tree for sure. Without it, the environment does: every descendant inherits KICI_AGENT_ID,
    and an agent id is never used twice. Nothing older than the agent counts, where its record is there to say who that
    is (None: it is not).
    """
    mark = f"KICI_AGENT_ID={agent_id}".encode()
    if agent is None and not any(mark in _environment_of(pid) for pid in _pids()):
        return []  # a first spawn asks this, and is not kept waiting for the tree of all that runs here
    found = {stat.pid: stat for stat in _processes() if stat.state not in "ZX"}
    ours = {
        pid
        for pid, stat in found.items()
        if stat.id == agent or ((agent is None or stat.start_time >= agent.start_time) and mark in _environment_of(pid))
    }
    grown = True
    while grown:
        children = {pid for pid, stat in found.items() if stat.parent in ours} - ours
        ours |= children
        grown = bool(children)
    return [found[pid].id for pid in ours if pid != os.getpid()]


def supervised_by(agent_id: str) -> tuple[ProcessId, ProcessId] | None:
    """The agent that runs under its supervisor, and that supervisor, by their own word: the environment of the
    one, the command line of the other. For where no record says who they are.
    """
    shims = {pid for pid in _pids() if _supervises(pid, agent_id)}
    mark = f"KICI_AGENT_ID={agent_id}".encode()
    found = (process_stat(pid) for pid in _pids() if mark in _environment_of(pid)) if shims else ()
    children = [stat for stat in found if stat and stat.parent in shims and stat.state not in "ZX"]
    if not children:
        return None
    # What the agent leaves behind becomes its supervisor's child as well, and is younger.
    agent = min(children, key=lambda stat: (stat.start_time, stat.pid))
    shim = process_stat(agent.parent)
    return (agent.id, shim.id) if shim else None


def refuse_another_users(agent_id: str) -> None:
    """Raise AnotherUsersError where the agent's supervisor runs as a user whose environments are closed to this one.

    Command lines are open to all, so this is known also where nothing else is.
    """
    for pid in _pids():
        if _supervises(pid, agent_id) and not _is_open(pid):
            raise AnotherUsersError(
                f"process {pid} of this machine supervises agent {agent_id} as another user than this worker's, which "
                "may not end it: two workers here run as different users under one host id. Run both as one user with "
                "one --state-dir, or give each a --host-id of its own"
            )


def _is_open(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb"):
            return True
    except PermissionError:
        return False
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has just ended


def _supervises(pid: int, agent_id: str) -> bool:
    """Whether it was started as `python -I -S shim.py AGENT_ID …`. So was the agent until it became its own program."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return len(words) > 4 and words[3].endswith(b"/shim.py") and words[4] == agent_id.encode()


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _processes() -> Iterator[ProcessStat]:
    """All that runs here, but what another user runs behind `hidepid`: it may not be seen, and is none of an agent's.

    Raises PermissionError where this user's own may not be seen: nothing can be said then.
    """
    for pid in _pids():
        try:
            stat = process_stat(pid)
        except PermissionError:
            if _owner_of(pid) == os.geteuid():
                raise
            continue
        if stat:
            yield stat


def _owner_of(pid: int) -> int | None:
    """The user whose process it is; None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None


def _environment_of(pid: int) -> list[bytes]:
    """Empty when the process is gone, or belongs to another user: see `refuse_another_users`."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
