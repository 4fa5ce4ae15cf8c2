"""Payload models of the workflows that look after everything: warm pools, reclaim, sweep and purge."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from hatchway.payloads import Payload


class WarmPoolRequest(Payload):
    """The input of WarmPoolWorkflow, and of its one signal."""

    scaler: str


class WarmPoolOutcome(Payload):
    """What was done for the pool."""

    started: int = 0
    released: int = 0


class ReclaimRequest(Payload):
    """The input of ReclaimWorkflow: one pass over the compute of one host."""

    host_id: str


class Sighting(Payload):
    """A compute of ours that nobody answers for: no row, no open workflow. `backend`: the kind that listed it."""

    agent_id: str
    backend: str
    since: datetime
    """When the first of the passes in a row began that saw it so."""


class ReclaimOutcome(Payload):
    """What one pass has seen and done. The next pass reads `sighted` out of it."""

    seen: int = 0
    """Computes that bear this installation's id."""
    sighted: list[Sighting] = []
    """Those that the next pass destroys, if it sees them so again."""
    more: int = 0
    """Computes without a row that were left for a later pass."""
    reclaimed: list[str] = []
    restored: list[str] = []
    """Agents whose open workflow got its row back."""
    failed: dict[str, str] = {}
    """What did not get through, by backend or agent, and why."""
    retired: bool = False
    """The host is gone and nothing of it is on record: its schedule has been deleted."""


class SweepRequest(Payload):
    """The input of SweepWorkflow and of each of its steps. Empty, so that fields can be added."""


class PurgeKind(StrEnum):
    """What is deleted once it is spent."""

    CLAIMS = "claims"
    TOKENS = "tokens"
    PRESENCE = "presence"
    OUTCOMES = "outcomes"
    JOBS = "jobs"
    INSTANCES = "instances"


class PurgeRequest(Payload):
    """The input of PurgeWorkflow. Empty, so that fields can be added."""


class PurgeInput(Payload):
    """The input of each of its steps."""

    kind: PurgeKind


class SweptStep(Payload):
    """What one step of a sweep or a purge has done: a word for each kind of thing, and how many. `error`: it failed."""

    done: dict[str, int] = {}
    error: str | None = None


class SweepOutcome(Payload):
    """What each step has done, by its name."""

    steps: dict[str, SweptStep]

    @property
    def failed(self) -> dict[str, str]:
        """The steps that did not get through, and why."""
        return {name: step.error for name, step in self.steps.items() if step.error is not None}
