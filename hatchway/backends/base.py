"""The contract of a backend: the one place where compute comes from and goes to.

`tests/contract/backend.py` is the same contract as tests; every backend passes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from hatchway.config.schema import LabelSet, Scaler
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts
from hatchway.registry.auth import RegistryAuth


@dataclass(frozen=True)
class SpawnSpec:
    """Everything that one spawn needs. Lives in the worker's memory only: `env` and `auth` hold secrets."""

    agent_id: str
    scaler: Scaler
    label_set: LabelSet
    labels: tuple[str, ...]
    installation_id: str
    env: Mapping[str, str] = field(repr=False)
    """The agent's whole environment, claim code included, in the order of docs/agents.md."""
    secret_values: frozenset[str] = field(repr=False, default=frozenset())
    """Every secret value that this spawn handled, the claim code included: redacted from any text that leaves."""
    image: str | None = None
    """The image to run: the job's where `allowJobImage`, else the label set's. None for bare-metal."""
    auth: RegistryAuth | None = field(repr=False, default=None)
    """The job's own credentials, or None when the job declared none."""
    job_id: str | None = None
    run_id: str | None = None
    mcpu: int | None = None
    mem_bytes: int | None = None
    stop_grace: timedelta = timedelta(seconds=30)
    time_limit: timedelta | None = None
    """How long this attempt may take; None: the scaler's `spawnTimeoutSeconds`."""
    max_lifetime: timedelta | None = None
    """Of the agent, from its adoption on. None: without a bound."""
    asked_before: bool = False
    """An earlier attempt may have asked for this agent's compute; what came of that may not show yet."""
    adoption_timeout: timedelta | None = None
    """How long after the confirmed spawn it may be adopted; None: the scaler's `adoptionTimeoutSeconds`."""


class Progress(Protocol):
    """Called with one short line for people ("pulling 3/7 layers, 41 %"). Safe to call from any thread."""

    def __call__(self, message: str) -> None: ...


@dataclass(frozen=True)
class Gone:
    """The compute is confirmed gone: it was destroyed, or it was never there."""


@dataclass(frozen=True)
class Accepted:
    """A target took the teardown, and nobody will confirm it."""

    doubt: str = ""
    """For people: why even that may have been said to the wrong one. A sentence; empty: it was the right one."""


@dataclass(frozen=True)
class OwnedCompute:
    """A compute that bears our installation id."""

    agent_id: str
    ref: ComputeRef
    created_at: datetime | None = None


class Backend(Protocol):
    """Spawns and destroys compute, found again by the agent id alone."""

    @property
    def host_id(self) -> str:
        """The engine, machine or account that every effect of this backend lands on."""
        ...

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """Start the agent's compute, or find the one that an earlier attempt started. Idempotent by `spec.agent_id`.

        Raises PermanentSpawnError or TransientSpawnError. Nothing half-made is left behind by a failure.
        A cancelled call lets the cancellation through once nothing that it asked for can still come up, and leaves
        what there is: another attempt may have taken that over, and its agent be at work. Who called decides.
        """
        ...

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        """Stop and remove the agent's compute. Absent is Gone. Raises DestroyError while it cannot be confirmed."""
        ...

    async def find(self, agent_id: str) -> ComputeRef | None:
        """The agent's compute, from durable evidence only."""
        ...

    def exits(self) -> AsyncIterator[ComputeExit]:
        """Every compute of ours that ended by itself, also while nobody watched; at least once each."""
        ...

    def owned(self) -> AsyncIterator[OwnedCompute]:
        """Everything that bears our installation id."""
        ...

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        """The last lines of what the compute printed, for an operator on this host. Empty when there is none."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads. Touches no compute."""
        ...


@runtime_checkable
class OnEngine(Protocol):
    """A backend whose host id may come to mean another engine than it did: an operator gives the one and edits the
    other. What is not there is gone only where the engine is the one that the agent was spawned on.
    """

    async def engine_id(self) -> str:
        """The engine's own id. Raises TransientSpawnError while it does not say."""
        ...


@runtime_checkable
class Pingable(Protocol):
    """A backend whose engine can be away while its worker goes on."""

    async def ping(self, limit: timedelta) -> None:
        """Return once the engine has answered. Raises HatchwayError when it does not within `limit`.

        Takes nothing that a spawn or a teardown waits for.
        """
        ...
