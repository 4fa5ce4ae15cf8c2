"""The processes of an agent, found by the agent id in their environment: its own, and whatever it has started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = b"KICI_AGENT_ID="


def of_agents() -> dict[str, list[int]]:
    """Agent id -> the pids of everything that runs for it on this machine. Zombies have no environment any more."""
    found: dict[str, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (agent_id := _agent_of(entry)):
            found.setdefault(agent_id, []).append(int(entry))
    return found


def of_agent(agent_id: str) -> list[int]:
    return of_agents().get(agent_id, [])


def signal_agent(agent_id: str, number: signal.Signals) -> int:
    """Signal everything of an agent; how many processes that were."""
    pids = of_agent(agent_id)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError):
                # The command is in parentheses and may hold anything; the parent is the second word after it.
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, ahead = [], [pid]
    while ahead:
        one = ahead.pop()
        found.append(one)
        ahead += children.get(one, [])
    return found


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Signal a process and all its descendants, itself first."""
    for one in tree_of(pid):
        with suppress(ProcessLookupError):
            os.kill(one, number)


def _agent_of(pid: str) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended meanwhile
        return None
    for entry in environment.split(b"\0"):
        if entry.startswith(MARK):
            return entry[len(MARK) :].decode()
    return None
