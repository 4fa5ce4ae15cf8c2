"""The kill matrix: which component is hit, how, at which point; what cannot occur; what runs in CI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.chaos.faults import Action, Component
from tests.support.chaos.points import Point

MOST_IN_CI = 60

LOST = {"AgentLost", "SpawnFailed"}
"""The agent is gone for good: after its registration, or before it."""

NO_AGENT_YET = "the agent is made at P4"
NO_AGENT_ANY_MORE = "the agent was destroyed before P8"


@dataclass(frozen=True, slots=True)
class Cell:
    component: Component
    action: Action
    point: Point

    def __str__(self) -> str:
        return f"{self.component.value}, {self.action.value}, {self.point.value}"

    @property
    def impossible(self) -> str | None:
        """Why it cannot occur."""
        if self.component is Component.AGENT:
            if self.point < Point.P4:
                return NO_AGENT_YET
            if self.point > Point.P7:
                return NO_AGENT_ANY_MORE
        return None

    @property
    def ends(self) -> set[str]:
        """How its provision may end. A fault of our own parts, of the servers or of a link costs no job."""
        if self.component is Component.AGENT:
            if self.point is Point.P7:  # nobody tears down an agent that runs, unless it is asked for
                return {"Cancelled"}
            if self.action is Action.KILL:
                return LOST
            if self.action is Action.RESTART:  # one that had not redeemed its claim yet begins anew
                return {*LOST, "completed"}
        return {"completed"}


def every_cell() -> Iterator[Cell]:
    for component in Component:
        for action in Action:
            for point in Point:
                yield Cell(component, action, point)


def possible() -> list[Cell]:
    return [cell for cell in every_cell() if cell.impossible is None]


def in_ci() -> list[Cell]:
    """The worker is killed at every point; everything else meets every point with one action, in turn."""
    chosen = [cell for cell in possible() if cell.component is Component.WORKER and cell.action is Action.KILL]
    actions = list(Action)
    for row, component in enumerate(Component):
        for column, point in enumerate(Point):
            cell = Cell(component, actions[(row + column) % len(actions)], point)
            if cell.impossible is None and cell not in chosen:
                chosen.append(cell)
    assert len(chosen) <= MOST_IN_CI
    return chosen
