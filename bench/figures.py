"""Figures against their bounds: how they are taken, judged and printed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median

REPETITIONS = 5

Rate = Callable[[], Awaitable[float]]
"""Runs a load once; answers how many of it were done a second, or, for a line with a ceiling, how long one took."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One of ours and one of theirs, run one right after the other. Both are rates a second, or both milliseconds."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report: a ratio, and the floor of rates or the ceiling of times; neither, and it only informs."""

    title: str
    floor: float | None
    pairs: Sequence[Pair]
    ceiling: float | None = None
    unit: str = "/s"

    @property
    def figure(self) -> float:
        """The median of the pairs' own ratios: a moment in which the machine was busy elsewhere spoils one pair."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def met(self) -> bool:
        return _met(self.figure, self.floor, self.ceiling)

    def __str__(self) -> str:
        ratios = [pair.ratio for pair in self.pairs]
        ours, theirs = (median(rates) for rates in zip(*((p.ours, p.theirs) for p in self.pairs), strict=True))
        return (
            f"{_judged(self.title, self.figure, self.floor, self.ceiling)}   {min(ratios):.2f} - {max(ratios):.2f}"
            f"   {ours:>8,.1f} / {theirs:<8,.1f} {self.unit:<3} {_verdict(self.met, self.floor, self.ceiling)}"
        )


@dataclass(frozen=True, slots=True)
class Amount:
    """A line that has nothing beside it: how long somebody waits, or how much of something is used."""

    title: str
    ceiling: float | None
    taken: Sequence[float]
    unit: str = "ms"
    floor: None = None

    @property
    def figure(self) -> float:
        return median(self.taken)

    @property
    def met(self) -> bool:
        return _met(self.figure, None, self.ceiling)

    def __str__(self) -> str:
        spread = f"{min(self.taken):.1f} - {max(self.taken):.1f}"
        return (
            f"{_judged(self.title, self.figure, None, self.ceiling)}   {spread:<11}   {'':>19} {self.unit:<3} "
            f"{_verdict(self.met, None, self.ceiling)}"
        )


def _met(figure: float, floor: float | None, ceiling: float | None) -> bool:
    return (floor is None or figure >= floor) and (ceiling is None or figure <= ceiling)


def _judged(title: str, figure: float, floor: float | None, ceiling: float | None) -> str:
    bound = "-" if floor is None and ceiling is None else f">= {floor}" if ceiling is None else f"<= {ceiling}"
    return f"{title:<66} {figure:6.2f} {bound:>8}"


def _verdict(met: bool, floor: float | None, ceiling: float | None) -> str:
    if floor is None and ceiling is None:
        return "for information"
    return "ok" if met else "UNDER THE FLOOR" if ceiling is None else "ABOVE THE CEILING"


HEADINGS = f"{'':<66} {'median':>6} {'bound':>8}   {'from - to':<11}   {'ours / theirs':^19}"


@dataclass(frozen=True, slots=True)
class Against:
    """What ours is measured against, and the title and bounds of that line. Times have `ms` as their unit."""

    title: str
    floor: float | None
    theirs: Rate
    ceiling: float | None = None
    unit: str = "/s"


async def take(ours: Rate, *against: Against, repetitions: int = REPETITIONS) -> list[Line]:
    """Ours, theirs, ours, theirs …: what drifts (a growing table, a neighbour's load) falls on both."""
    rounds = [(await ours(), [await other.theirs() for other in against]) for _ in range(repetitions)]
    return [
        Line(other.title, other.floor, [Pair(rate, theirs[n]) for rate, theirs in rounds], other.ceiling, other.unit)
        for n, other in enumerate(against)
    ]


def out_of_bounds(lines: Sequence[Line | Amount]) -> list[Line | Amount]:
    """Those that make the run fail."""
    return [line for line in lines if not line.met]
