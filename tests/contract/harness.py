"""What a backend brings to the contract suite, and what its tests share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

from hatchway.backends.base import Backend, Gone, SpawnSpec
from hatchway.model import ComputeExit, ScaleDownReason, TeardownFacts

CLAIM = "claim-T0pS3cret/with+odd=signs"
EXIT_CODE = 23
PATIENCE = 30.0  # seconds that any one condition may take before the test fails
CUT_AFTER = [0.0, 0.002, 0.01, 0.03, 0.06, 0.15, 0.4]
"""Seconds of a spawn after which it is cancelled: between them they meet each of its steps."""
LATE = 0.3
"""Seconds. What a call that was not waited for would take to show."""


class Behaviour(StrEnum):
    """What the agent of a spec does."""

    RUNS = "runs until it is told to end"
    IGNORES_TERM = "ignores SIGTERM, prints `ready` once it does, and runs"
    EXITS = (
        "prints the claim from its environment, plain and as base64 of `x:<claim>`, and `the last line`; exits with 23"
    )
    UNSTARTABLE = "its command does not exist"


class BackendHarness(Protocol):
    """What the suite has to know of one backend's world, seen from outside of the backend."""

    @property
    def backend(self) -> Backend:
        """The backend of the worker under test."""
        ...

    @property
    def base_environment(self) -> frozenset[str]:
        """Names that an agent's environment may hold beside those of its spec."""
        ...

    async def another(self, installation_id: str | None = None) -> Backend:
        """The same backend as a restarted worker, or another one on that host, would build it."""
        ...

    def spec(self, agent_id: str, behaviour: Behaviour, env: Mapping[str, str]) -> SpawnSpec:
        """A spec whose stop grace is one second and whose secrets are the claim."""
        ...

    async def live(self, agent_id: str) -> int:
        """How many agents with this id run now, counted without the backend."""
        ...

    async def remains(self, agent_id: str) -> list[str]:
        """Everything that is there because of this agent id: running, stopped, half-made, on disk."""
        ...

    async def environment(self, agent_id: str) -> dict[str, str]:
        """The environment that the running agent has."""
        ...

    async def exposed(self, agent_id: str) -> str:
        """All that others than agent and engine's owner get to see: names, labels, command lines, files, logs."""
        ...

    async def kill_from_outside(self, agent_id: str) -> None:
        """End the agent behind the backend's back."""
        ...

    def outage(self) -> AbstractAsyncContextManager[None]:
        """While it is open, the backend's engine cannot be reached."""
        ...

    async def crash_during_spawn(self, spec: SpawnSpec, point: str) -> None:
        """Spawn in a process of its own and SIGKILL that process at this point."""
        ...


def fresh_agent_id() -> str:
    return f"scaler-{uuid.uuid4().hex}"


def environment_for(agent_id: str) -> dict[str, str]:
    return {
        "KICI_AGENT_ID": agent_id,
        "KICI_SCALER_CLAIM_CODE": CLAIM,
        "KICI_SCALER_MANAGED": "1",
        "ODD": "a=b c\n'\"$é",
    }


def spec_for(harness: BackendHarness, agent_id: str, behaviour: Behaviour = Behaviour.RUNS) -> SpawnSpec:
    return harness.spec(agent_id, behaviour, environment_for(agent_id))


def facts_for(backend: Backend) -> TeardownFacts:
    """What is known of an agent whose spawn never answered: no ComputeRef."""
    return TeardownFacts(backend_type="any", host_id=backend.host_id)


def silent(message: str) -> None:
    """The progress of a test that does not look at it."""


async def destroy(backend: Backend, agent_id: str) -> None:
    assert await backend.destroy(agent_id, facts_for(backend), ScaleDownReason.SHUTDOWN) == Gone()


async def live_becomes(harness: BackendHarness, agent_id: str, wanted: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await harness.live(agent_id) != wanted:
            await asyncio.sleep(0.02)


async def exit_of(backend: Backend, agent_id: str) -> ComputeExit:
    async with asyncio.timeout(PATIENCE):
        async for ended in backend.exits():
            if ended.agent_id == agent_id:
                return ended
    raise AssertionError("exits() came to an end")


async def owned_ids(backend: Backend) -> set[str]:
    return {owned.agent_id async for owned in backend.owned()}
