"""Ending processes and never a stranger: each is named by pid and start time, and signalled through a pidfd."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from hatchway.host.identity import ProcessId, ProcessStat, process_stat


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
    found = {stat.pid: stat for stat in _processes() if stat.state not in "ZX"}
    mark = f"KICI_AGENT_ID={agent_id}".encode()
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


def _processes() -> Iterator[ProcessStat]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := process_stat(int(name))):
            yield stat


def _environment_of(pid: int) -> list[bytes]:
    """Empty when the process is gone, or belongs to another user and therefore is not of ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
