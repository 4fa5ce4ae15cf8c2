"""A backend that does as a test says, and keeps an append-only log of what was done to it.

Meaner than a real one: replies get lost after the effect, creates fail half way, destroys fail or hang, and it can be
stopped at a gate before and after each effect. Compute is one entry in a dict that survives the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from hatchway.backends.base import Accepted, Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts

Step = Callable[[str], Awaitable[None]]


async def straight_on(_agent_id: str) -> None:
    """The step that does nothing."""


class Gate:
    """Holds every call that comes to it until it is opened; says that one has come."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._open = asyncio.Event()

    async def __call__(self, _agent_id: str) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


@dataclass
class Cloud:
    """The compute that is there, and everything that was ever done to it. Shared by the hosts of a test."""

    live: dict[str, str] = field(default_factory=dict)
    """Agent id to host id."""
    log: list[tuple[str, str, str]] = field(default_factory=list)
    """(what, agent id, host id), in order."""
    most: int = 0

    def create(self, agent_id: str, host_id: str) -> None:
        if agent_id in self.live:
            self.log.append(("found", agent_id, host_id))
            return
        self.live[agent_id] = host_id
        self.most = max(self.most, len(self.live))
        self.log.append(("created", agent_id, host_id))

    def remove(self, agent_id: str, host_id: str) -> None:
        if self.live.pop(agent_id, None):
            self.log.append(("removed", agent_id, host_id))

    def asked_to_destroy(self, agent_id: str, host_id: str) -> None:
        self.log.append(("asked to destroy", agent_id, host_id))

    def created(self, agent_id: str) -> int:
        return sum(1 for what, agent, _ in self.log if what == "created" and agent == agent_id)


@dataclass
class ScriptedBackend:
    """Steps may be replaced at any time; each is awaited with the agent id, and may raise."""

    cloud: Cloud
    host: str = "host-1"
    before_create: Step = straight_on
    after_create: Step = straight_on
    before_destroy: Step = straight_on
    after_destroy: Step = straight_on
    specs: dict[str, SpawnSpec] = field(default_factory=dict)
    reasons: dict[str, ScaleDownReason] = field(default_factory=dict)
    accepts_only: bool = False
    doubt: str = ""
    """What it has to say of a teardown that it only accepts."""

    @property
    def host_id(self) -> str:
        return self.host

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        self.specs[spec.agent_id] = spec
        progress("creating")
        await self.before_create(spec.agent_id)
        self.cloud.create(spec.agent_id, self.host)
        await self.after_create(spec.agent_id)
        return ComputeRef(backend="bare-metal", ref=spec.agent_id, host_id=self.host)

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        self.cloud.asked_to_destroy(agent_id, self.host)
        self.reasons[agent_id] = reason
        await self.before_destroy(agent_id)
        self.cloud.remove(agent_id, self.host)
        await self.after_destroy(agent_id)
        return Accepted(self.doubt) if self.accepts_only else Gone()

    async def find(self, agent_id: str) -> ComputeRef | None:
        if self.cloud.live.get(agent_id) != self.host:
            return None
        return ComputeRef(backend="bare-metal", ref=agent_id, host_id=self.host)

    async def exits(self) -> AsyncIterator[ComputeExit]:
        await asyncio.Event().wait()
        yield ComputeExit(agent_id="never")

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        for agent_id in list(self.cloud.live):
            yield OwnedCompute(agent_id, ComputeRef(backend="bare-metal", ref=agent_id, host_id=self.host))

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        return ""

    async def close(self) -> None:
        return None
