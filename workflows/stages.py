"""Where a provision stands and how long it stood where. The only way from one state to the next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from temporalio import workflow

from hatchway.model import ProvisionState, StageEntry, StageTimes
from hatchway.transitions import FOLLOWING, TRANSITIONS

S = ProvisionState

MEASURED_AT: Mapping[ProvisionState, tuple[str, frozenset[ProvisionState]]] = {
    S.SPAWNING: ("request_to_slot_seconds", frozenset({S.RESERVING})),
    S.AWAITING_ADOPTION: ("slot_to_spawned_seconds", frozenset({S.RESOLVING, S.SPAWNING})),
    S.ACTIVE: ("spawned_to_adopted_seconds", frozenset({S.AWAITING_ADOPTION})),
    S.CLOSED: ("end_to_gone_seconds", frozenset({S.TEARING_DOWN})),
}
"""On entering a state: the histogram, and the state that its stretch began with."""


class Stages:
    def __init__(self) -> None:
        self.following = False
        """A warm agent does the job: no slot is held."""
        self.entries = [StageEntry(state=ProvisionState.RESERVING, since=workflow.now())]

    @property
    def state(self) -> ProvisionState:
        return self.entries[-1].state

    @property
    def since(self) -> datetime:
        return self.entries[-1].since

    def enter(self, state: ProvisionState) -> None:
        """Raises RuntimeError for a step that the diagram does not have: a bug, which must wedge and not go on."""
        besides = FOLLOWING.get(self.state, frozenset()) if self.following else frozenset()
        if state not in TRANSITIONS[self.state] | besides:
            raise RuntimeError(f"a provision does not go from {self.state.value} to {state.value}")
        self.entries.append(StageEntry(state=state, since=workflow.now()))
        if state in MEASURED_AT:
            self._measure(*MEASURED_AT[state])

    def _measure(self, name: str, since: frozenset[ProvisionState]) -> None:
        """One histogram of a stretch, from when it was first entered. The workflow's meter is silent on replay."""
        begun = next((entry.since for entry in self.entries if entry.state in since), None)
        if begun is not None:
            meter = workflow.metric_meter()
            # Not as a duration: the SDK counts those in milliseconds.
            meter.create_histogram_float(f"hatchway_{name}", unit="s").record((workflow.now() - begun).total_seconds())

    def times(self) -> StageTimes:
        """Seconds in each stage; one that was entered twice counts both times."""
        seconds = dict.fromkeys(StageTimes.model_fields, 0.0)
        for entry, following in zip(self.entries, self.entries[1:], strict=False):
            seconds[entry.state.value.replace("-", "_")] += (following.since - entry.since).total_seconds()
        return StageTimes(**seconds)
