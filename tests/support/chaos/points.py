"""The points P1 to P9 of a provision, and barriers there: it stands still at one until the test lets it go on.

A barrier is armed for one job at one point, and holds whoever comes there first. Who stood there, and whether it has
gone on, is in an append-only log: that a fault hit at this point is read from it, not assumed from time gone by.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LOOK_EVERY = 0.02
"""Seconds between two looks of whoever stands at a barrier."""


class Point(StrEnum):
    """Each is the moment right after what it is called, with the answer not yet passed on."""

    P1 = "P1"
    P2 = "P2"
    P3 = "P3"
    P4 = "P4"
    P5 = "P5"
    P6 = "P6"
    P7 = "P7"
    P8 = "P8"
    P9 = "P9"

    @property
    def meaning(self) -> str:
        return MEANINGS[self]


MEANINGS = {
    Point.P1: "the slot is reserved",
    Point.P2: "the registry credentials are resolved",
    Point.P3: "the claim is minted",
    Point.P4: "the create call was sent and has its effect; its reply is not taken",
    Point.P5: "the spawn is confirmed on the row",
    Point.P6: "the agent is adopted on the row",
    Point.P7: "the teardown is about to be sent to the backend",
    Point.P8: "the backend has confirmed the teardown",
    Point.P9: "the slot is released",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """Somebody at a barrier."""

    point: Point
    job_id: str
    agent_id: str
    process: str
    """The worker's name in the fleet."""
    pid: int
    detail: str
    """P6: the gateway's instance id."""


class Barriers:
    """Shared by the test and the workers through a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = directory / "log"

    def make(self) -> None:
        for name in ("armed", "taken", "open", "jobs", "agents"):
            (self.directory / name).mkdir(parents=True)
        self._log.touch()

    # ── the test's side ─────────────────────────────────────────────────────────────────────────────────────────

    def arm(self, job_id: str, point: Point) -> None:
        (self.directory / "armed" / job_id).write_text(point.value)

    def standing(self, job_id: str) -> Standing | None:
        """Who stands at this job's barrier, and has not gone on. None: nobody has come, or it has left."""
        found = None
        for line in self._log.read_text().splitlines():
            what, point, job, agent_id, process, pid, *detail = line.split(" ")
            if job == job_id:
                found = None
                if what == "entered":
                    found = Standing(Point(point), job, agent_id, process, int(pid), "".join(detail))
        return found

    def open(self, job_id: str) -> None:
        (self.directory / "open" / job_id).touch()

    # ── a worker's side ─────────────────────────────────────────────────────────────────────────────────────────

    def learn(self, agent_id: str, job_id: str) -> None:
        """Most steps know the agent only."""
        (self.directory / "jobs" / agent_id).write_text(job_id)
        (self.directory / "agents" / job_id).write_text(agent_id)

    def agent_of(self, job_id: str) -> str:
        """The agent that has reserved a slot for this job last; empty for a job that nobody did that for."""
        path = self.directory / "agents" / job_id
        return path.read_text() if path.exists() else ""

    async def at(self, point: Point, agent_id: str, process: str, detail: str = "") -> None:
        """Stand here if this agent's job is to be held at this point and nobody has been."""
        job = self.directory / "jobs" / agent_id
        if not agent_id or not job.exists():
            return
        job_id = job.read_text()
        order = self.directory / "armed" / job_id
        armed = order.read_text() if order.exists() else ""
        if armed != point.value or not self._take(job_id):
            return
        who = f"{point.value} {job_id} {agent_id} {process} {os.getpid()} {detail}".strip()
        self._append(f"entered {who}")
        try:
            while not (self.directory / "open" / job_id).exists():
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._append(f"left {who}")

    def _take(self, job_id: str) -> bool:
        try:
            (self.directory / "taken" / job_id).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _append(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(line + "\n")
