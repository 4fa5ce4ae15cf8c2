"""A fake cloud: a process with an HTTP door, machines that outlive it, and an effect log that is only appended to.

    python -m tests.support.chaos.cloud DIRECTORY PORT JOURNAL

A machine is a file, `machines/<agent id>`, and a process: the agent. It is there with its file or not at all, so the
cloud may be killed at any instant; what its log lacks then is made up for when it starts again. It is as mean as
`mischief.json` says, in chances by call: the effect is made and the reply is lost; the call fails and the effect comes
later; the call is slow; a listing leaves machines out, or names some that are gone. The dice are a hash of the seed,
the call and its number, so one seed gives one cloud.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.chaos.journal import Journal
from tests.support.chaos.processes import of_agent, of_agents, signal_agent

LATE_S = 1.5
"""How much later a late effect comes: after the caller's next attempt, which finds nothing, or the late one."""
SLOW_S = 1.2
STOP_S = 0.5
"""What a job gets between SIGTERM and SIGKILL: it only has to write that it was told."""

Answer = dict[str, Any]


@dataclass
class Mischief:
    """Chances from 0 to 1."""

    seed: int = 0
    lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    partial: float = 0.0
    stale: float = 0.0
    _calls: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Mischief:
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({n: getattr(self, n) for n in ("seed", "lost", "late", "slow", "partial", "stale")}))

    def throws(self, call: str, what: str) -> bool:
        """Whether `what` happens to this call; another number each time it is asked."""
        self._calls[f"{call} {what}"] += 1
        text = f"{self.seed} {call} {what} {self._calls[f'{call} {what}']}"
        dice = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
        return dice < float(getattr(self, what))


class Lost(Exception):
    """The caller hears nothing."""


class Late(Exception):
    """The caller hears that it failed."""


class Cloud:
    def __init__(self, directory: Path, journal: Journal) -> None:
        self._directory = directory
        self._machines = directory / "machines"
        self._machines.mkdir(exist_ok=True)
        self._journal = journal
        self._lock = threading.Lock()
        self._gone: list[Answer] = []
        """The last few that were removed: what a stale listing names."""
        self._children: list[subprocess.Popen[bytes]] = []
        self.mischief = Mischief.read(directory / "mischief.json")
        self._make_up_for_a_kill()

    # ── the calls ───────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, ask: Answer) -> Answer:
        return self._meanly("create", ask["agent_id"], lambda late: self._create(ask, late))

    def destroy(self, ask: Answer) -> Answer:
        return self._meanly("destroy", ask["agent_id"], lambda _late: self._destroy(ask["agent_id"]))

    def find(self, ask: Answer) -> Answer:
        return {"found": (self._machines / ask["agent_id"]).exists()}

    def list(self, ask: Answer) -> Answer:
        """Every machine; whose it is stands beside it, and is for the caller to heed."""
        machines = [self._described(path) for path in sorted(self._machines.iterdir())]
        if self.mischief.throws("list", "partial"):
            machines = machines[: len(machines) // 2]
        if self.mischief.throws("list", "stale"):
            machines += self._gone
        return {"machines": [m for m in machines if m]}

    def ended(self, ask: Answer) -> Answer:
        """Machines whose agent has ended, or was never started."""
        with self._lock:  # between a machine and its agent's start lies a moment
            self._reap()
            running = of_agents()
            return {"agents": [path.name for path in self._machines.iterdir() if path.name not in running]}

    def behave(self, ask: Answer) -> Answer:
        self.mischief = Mischief(**ask)
        self.mischief.write(self._directory / "mischief.json")
        return {}

    # ── the effects ─────────────────────────────────────────────────────────────────────────────────────────────

    def _meanly(self, call: str, agent_id: str, effect: Any) -> Answer:
        name = f"{call} {agent_id}"
        if self.mischief.throws(name, "slow"):
            time.sleep(SLOW_S)
        if self.mischief.throws(name, "late"):
            threading.Timer(LATE_S, effect, [True]).start()
            raise Late
        answer: Answer = effect(False)
        if self.mischief.throws(name, "lost"):
            raise Lost
        return answer

    def _create(self, ask: Answer, late: bool) -> Answer:
        agent_id = ask["agent_id"]
        with self._lock:
            draft = self._directory / f"draft-{os.getpid()}"
            draft.write_text(json.dumps({"agent_id": agent_id, "installation": ask["installation"]}))
            try:
                os.link(draft, self._machines / agent_id)
            except FileExistsError:
                self._journal.append("found", agent_id)
                return {"found": True}
            finally:
                draft.unlink()
            self._journal.append(ask.get("as") or ("late" if late else "created"), agent_id, ask["scaler"])
            self._boot(ask)
        return {"found": False}

    def _boot(self, ask: Answer) -> None:
        with (self._directory / "agents.log").open("ab") as log:
            self._children.append(
                subprocess.Popen(
                    ask["command"], env=ask["env"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, cwd="/",
                )
            )  # fmt: skip

    def _destroy(self, agent_id: str) -> Answer:
        with self._lock:
            path = self._machines / agent_id
            machine = self._described(path)
            if machine is None:
                self._journal.append("absent", agent_id)
                return {"found": False}
            signal_agent(agent_id, signal.SIGTERM)
            end = time.monotonic() + STOP_S
            while of_agent(agent_id) and time.monotonic() < end:
                self._reap()
                time.sleep(0.02)
            while signal_agent(agent_id, signal.SIGKILL):
                time.sleep(0.01)
                self._reap()
            path.unlink()
            self._gone = [*self._gone[-4:], machine]
            self._journal.append("removed", agent_id)
        return {"found": True}

    def _described(self, path: Path) -> Answer | None:
        try:
            machine: Answer = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return machine

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]

    def _make_up_for_a_kill(self) -> None:
        """Append what was done and not logged: there was no time between the two."""
        logged: set[str] = set()
        for event in self._journal.events():
            if event.what in ("created", "late", "foreign"):
                logged.add(event.agent_id)
            elif event.what == "removed":
                logged.discard(event.agent_id)
        there = {path.name for path in self._machines.iterdir()}
        for agent_id in there - logged:
            self._journal.append("created", agent_id)
        for agent_id in logged - there - _elsewhere(self._journal):
            self._journal.append("removed", agent_id)


def _elsewhere(journal: Journal) -> set[str]:
    """Agents that this journal knows from bare metal: not ours to look for."""
    return {event.agent_id for event in journal.events() if event.what == "created" and event.detail == "metal"}


def door(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    calls = {name: getattr(cloud, name) for name in ("create", "destroy", "find", "list", "ended", "behave")}

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                answer = calls[self.path.strip("/")](ask)
            except Lost:
                self.close_connection = True
                return
            except Late:
                self._reply(500, {"error": "internal error"})
                return
            self._reply(200, answer)

        def _reply(self, status: int, answer: Answer) -> None:
            body = json.dumps(answer).encode()
            with suppress(OSError):  # whoever asked is gone, which is the point of this cloud
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet: the journal says what was done."""

    return Door


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    _, directory, port, journal = sys.argv
    cloud = Cloud(Path(directory), Journal(Path(journal)))
    Server(("127.0.0.1", int(port)), door(cloud)).serve_forever()


if __name__ == "__main__":
    main()
