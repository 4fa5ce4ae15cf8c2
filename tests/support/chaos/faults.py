"""What is done to the components of a fleet, and how it is undone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hatchway.dev.child import Child
from tests.support.chaos.firewall import Firewall
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.processes import of_agent, signal_agent, signal_tree
from tests.support.chaos.scalers import Docker
from tests.support.namespaces import until
from tests.support.proxy import FaultProxy

HOLD_S = 1.5
"""How long a pause or a cut lasts: longer than a heartbeat, shorter than every window."""


class Component(StrEnum):
    WORKER = "worker"
    GATEWAY = "gateway"
    POSTGRES = "Postgres"
    TEMPORAL = "Temporal server"
    ENGINE = "engine"
    AGENT = "agent"


class Action(StrEnum):
    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    CUT = "cut"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom it hits: the name of a worker or gateway, or an agent's id; the servers and the engine are one each."""

    component: Component
    name: str = ""


class MissedError(Exception):
    """There is nobody any more whom the fault could hit."""


class Faults:
    """`hit` returns with the fault in force, `heal` with everything as it was before."""

    def __init__(self, fleet: Fleet, firewall: Firewall | None = None) -> None:
        """With a firewall, a cut link loses its packets; without, its connections break."""
        self._fleet = fleet
        self._firewall = firewall
        self._environ: dict[str, tuple[list[bytes], dict[bytes, bytes]]] = {}

    async def hit(self, target: Target, action: Action) -> None:
        if target.component is Component.ENGINE and self._fleet.docker:
            await self._hit_docker(self._fleet.docker, action)
            return
        match action:
            case Action.KILL:
                await self._kill(target)
            case Action.PAUSE:
                if not self._signal(target, signal.SIGSTOP):
                    raise MissedError(f"{target.component.value} {target.name} has ended by itself")
            case Action.CUT:
                ways = self._ways(target)
                if self._firewall:
                    self._firewall.lose([way.port for way in ways])
                for way in ways if self._firewall is None else ():
                    way.cut()
            case Action.RESTART:
                await self._begin_restart(target)

    async def heal(self, target: Target, action: Action) -> None:
        if target.component is Component.ENGINE and self._fleet.docker:
            await self._heal_docker(self._fleet.docker, action)
            return
        match action:
            case Action.KILL:
                await self._start(target)
            case Action.PAUSE:
                self._signal(target, signal.SIGCONT)
            case Action.CUT:
                ways = self._ways(target)
                if self._firewall:
                    self._firewall.let_pass([way.port for way in ways])
                for way in ways if self._firewall is None else ():
                    way.heal()
            case Action.RESTART:
                await self._start(target)

    # ── a real engine: its own daemon, or the link to the machine's ──────────────────────────────────────────────

    async def _hit_docker(self, docker: Docker, action: Action) -> None:
        daemon = docker.daemon
        match action:
            case Action.KILL if daemon:
                await daemon.kill()
            case Action.RESTART if daemon:
                daemon.signal(signal.SIGTERM)
            case Action.PAUSE if daemon:
                daemon.signal(signal.SIGSTOP)
            case Action.PAUSE:
                docker.engine.hang()
            case _:
                docker.engine.cut()

    async def _heal_docker(self, docker: Docker, action: Action) -> None:
        daemon = docker.daemon
        match action:
            case Action.KILL | Action.RESTART if daemon:
                await daemon.ended()
                await daemon.start()
            case Action.PAUSE if daemon:
                daemon.signal(signal.SIGCONT)
            case _:
                docker.engine.heal()

    # ── kill, and start again ───────────────────────────────────────────────────────────────────────────────────

    async def _kill(self, target: Target) -> None:
        fleet = self._fleet
        match target.component:
            case Component.AGENT:
                fleet.journal.append("excused", target.name, "killed by the test")
                if not signal_agent(target.name, signal.SIGKILL):
                    raise MissedError(f"agent {target.name} has ended by itself")
            case Component.POSTGRES:
                assert fleet.postgres.pid
                signal_tree(fleet.postgres.pid, signal.SIGKILL)
                await until(lambda: not alive(fleet.postgres.pid), what="Postgres dead")
            case Component.TEMPORAL:
                await asyncio.to_thread(fleet.temporal.kill)
            case _:
                await self._end(self._child(target), signal.SIGKILL)

    async def _begin_restart(self, target: Target) -> None:
        """The polite way down: it is told, and has begun to end."""
        fleet = self._fleet
        match target.component:
            case Component.AGENT:
                self._environ[target.name] = _command_of(target.name)
                await self._kill(target)
            case Component.POSTGRES:
                assert fleet.postgres.pid
                os.kill(fleet.postgres.pid, signal.SIGINT)
            case Component.TEMPORAL:
                os.kill(fleet.temporal.pid, signal.SIGINT)
            case _:
                pid = self._child(target).pid
                assert pid
                os.kill(pid, signal.SIGTERM)

    async def _start(self, target: Target) -> None:
        fleet = self._fleet
        match target.component:
            case Component.AGENT:
                self._boot_again(target.name)
            case Component.POSTGRES:
                await until(lambda: not alive(fleet.postgres.pid), what="Postgres down")
                await asyncio.to_thread(fleet.postgres.stop)
                await asyncio.to_thread(fleet.postgres.start)
                for ways in fleet.ways.values():  # another process may have taken the port meanwhile
                    ways.postgres.target = ("127.0.0.1", fleet.postgres.port)
            case Component.TEMPORAL:
                if fleet.temporal._process is not None:  # a killed one is forgotten already
                    pid = fleet.temporal.pid
                    await until(lambda: not alive(pid), what="Temporal down")
                await fleet.temporal.stop()
                await fleet.temporal.start()
            case _:
                child = self._child(target)
                await child.stop()  # after a kill: nothing; after a SIGTERM: until it has ended
                child.start()

    async def _end(self, child: Child, number: signal.Signals) -> None:
        pid = child.pid
        assert pid is not None
        os.kill(pid, number)
        await until(lambda: child._process is None or child._process.poll() is not None, what=f"{child.name} dead")

    def _child(self, target: Target) -> Child:
        return self._fleet.children["cloud" if target.component is Component.ENGINE else target.name]

    def _boot_again(self, agent_id: str) -> None:
        """A machine that comes up again starts its agent as it did before. A killed one stays down."""
        if found := self._environ.pop(agent_id, None):
            command, env = found
            subprocess.Popen(command, env=env, start_new_session=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

    # ── pause and cut ───────────────────────────────────────────────────────────────────────────────────────────

    def _signal(self, target: Target, number: signal.Signals) -> bool:
        """False: there is nobody."""
        fleet = self._fleet
        match target.component:
            case Component.AGENT:
                return signal_agent(target.name, number) > 0
            case Component.POSTGRES:
                assert fleet.postgres.pid
                signal_tree(fleet.postgres.pid, number)
            case Component.TEMPORAL:
                os.kill(fleet.temporal.pid, number)
            case _:
                pid = self._child(target).pid
                assert pid
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        return True

    def _ways(self, target: Target) -> list[FaultProxy]:
        fleet = self._fleet
        ways: Callable[[], list[FaultProxy]] = {
            Component.WORKER: lambda: fleet.ways[target.name].all,
            Component.GATEWAY: lambda: [*fleet.ways[target.name].all, fleet.fronts[target.name]],
            Component.POSTGRES: lambda: [way.postgres for way in fleet.ways.values()],
            Component.TEMPORAL: lambda: [way.temporal for way in fleet.ways.values()],
            Component.ENGINE: lambda: [way.cloud for way in fleet.ways.values() if way.cloud],
            Component.AGENT: lambda: fleet.links,
        }[target.component]
        return ways()


def alive(pid: int | None) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command_of(agent_id: str) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The command and the environment of the agent itself: the first of its processes."""
    pid = min(of_agent(agent_id), default=None)
    if pid is None:
        raise MissedError(f"agent {agent_id} has ended by itself")
    command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    pairs = (entry.partition(b"=") for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry)
    return command, {name: value for name, _, value in pairs}
