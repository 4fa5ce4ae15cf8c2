"""The journal of a fleet: one append-only file that the cloud, the agents' jobs and the harness all write.

A line is one write to a file that was opened for appending, so lines of different processes never mix, and their order
in the file is the order in which things happened, whatever any clock says:

    NANOSECONDS WHAT AGENT DETAIL…
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

JOB = """
say() {{ at=$(date +%s%N); echo "${{at:-0}} $1 $KICI_AGENT_ID $HATCHWAY_JOB_ID" >> {journal}; }}
trap 'say told; exit 143' TERM
say began
sleep "${{HATCHWAY_JOB_ID##*_}}" & wait $!
say finished
"""
"""What an agent runs. A job's id ends with how long it takes: `NAME_SECONDS`. Whoever kills an agent may kill its
`date` first: the line must stand all the same."""


def job_script(journal: Path) -> str:
    return JOB.format(journal=journal)


@dataclass(frozen=True, slots=True)
class Event:
    """One line.

    created, late, removed    the cloud: a machine is there (late: after its caller was told that it failed), or gone
    found, absent             the cloud: asked for a machine that is there already, or to remove one that is not
    began, finished, told     an agent's job: it works, it is done, it got SIGTERM
    excused                   the harness: from here on this agent may be ended, because of DETAIL
    orphaned                  the harness: its workflow was terminated; a busy one must not be ended for that
    foreign                   the harness: a machine of somebody else
    """

    at: int
    """Nanoseconds of this machine's clock, which is Postgres's as well; 0 where there was no time to ask for it."""
    what: str
    agent_id: str
    detail: str = ""


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Everybody on this machine may write it: agents run as other users."""
        self.path.touch()
        self.path.chmod(0o666)

    def append(self, what: str, agent_id: str, detail: str = "") -> None:
        line = f"{time.time_ns()} {what} {agent_id} {detail}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def events(self) -> list[Event]:
        return list(self._parsed(self.path.read_text()))

    @staticmethod
    def _parsed(text: str) -> Iterator[Event]:
        for line in text[: text.rfind("\n") + 1].splitlines():
            at, what, agent_id, *detail = line.split(" ", 3)
            yield Event(int(at), what, agent_id, detail[0].strip() if detail else "")
