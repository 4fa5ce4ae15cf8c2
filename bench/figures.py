"""Ratios against their floors: how they are taken, judged and printed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

REPETITIONS = 5

Rate = Callable[[], Awaitable[float]]
"""Runs a load once; answers how many of it were done a second."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One of ours and one of theirs, run one right after the other. Both are rates a second."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report. `floor` is None for a line that only informs."""

    title: str
    floor: float | None
    pairs: Sequence[Pair]

    @property
    def ratio(self) -> float:
        """The median of the pairs' own ratios: a moment in which the machine was busy elsewhere spoils one pair."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def met(self) -> bool:
        return self.floor is None or self.ratio >= self.floor

    def __str__(self) -> str:
        ratios = [pair.ratio for pair in self.pairs]
        floor = "     -" if self.floor is None else f"{self.floor:6.2f}"
        verdict = "for information" if self.floor is None else "ok" if self.met else "UNDER THE FLOOR"
        ours, theirs = (median(rates) for rates in zip(*((p.ours, p.theirs) for p in self.pairs), strict=True))
        return (
            f"{self.title:<66} {self.ratio:6.2f} {floor}   {min(ratios):.2f} - {max(ratios):.2f}"
            f"   {ours:>8,.1f} / {theirs:<8,.1f}  {verdict}"
        )


HEADINGS = f"{'':<66} {'ratio':>6} {'floor':>6}   {'of five':<11}   {'per second':^19}  "


@dataclass(frozen=True, slots=True)
class Against:
    """What ours is measured against, and the title and floor of that line."""

    title: str
    floor: float | None
    theirs: Rate


async def take(ours: Rate, *against: Against, repetitions: int = REPETITIONS) -> list[Line]:
    """Ours, theirs, ours, theirs …: what drifts (a growing table, a neighbour's load) falls on both."""
    rounds = [(await ours(), [await other.theirs() for other in against]) for _ in range(repetitions)]
    return [
        Line(other.title, other.floor, [Pair(rate, theirs[n]) for rate, theirs in rounds])
        for n, other in enumerate(against)
    ]


def under_their_floors(lines: Sequence[Line]) -> list[Line]:
    """Those that make the run fail."""
    return [line for line in lines if not line.met]
