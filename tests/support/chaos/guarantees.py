"""`docs/guarantees.md`: the parts between its markers are written by the runs that they tell of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.chaos.campaign import Result
from tests.support.chaos.cells import Cell, every_cell, in_ci
from tests.support.chaos.checker import Kind
from tests.support.chaos.faults import Action, Component
from tests.support.chaos.points import Point
from tests.support.chaos.storm import Figures

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"
COMPONENTS = {Component.ENGINE: "Docker daemon (engine)"}
HELD, BROKEN, IMPOSSIBLE = "held", "**broken**", "n/a"


def write(section: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between `<!-- section -->` and `<!-- /section -->`."""
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no section {section}: put {begin} and {end} where it belongs")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")


def matrix(results: Iterable[Result]) -> str:
    """A table of all cells, with `*` at those that CI runs, and why the others cannot occur."""
    came_of = {result.cell: result for result in results}
    chosen = set(in_ci())
    lines = ["| component | fault | " + " | ".join(Point) + " |", "|---|---|" + "---|" * len(Point)]
    for component in Component:
        for action in Action:
            words = [_word(Cell(component, action, point), came_of, chosen) for point in Point]
            lines.append(f"| {COMPONENTS.get(component, component.value)} | {action.value} | {' | '.join(words)} |")
    reasons = sorted({(c.component.value, c.impossible) for c in every_cell() if c.impossible})
    lines += ["", *(f"- n/a, {component}: {reason}." for component, reason in reasons)]
    green = sum(result.green for result in came_of.values())
    lines += ["", f"{green} of {len(came_of)} cells held; {len(chosen)} of them (`*`) run in CI."]
    return "\n".join(lines)


def _word(cell: Cell, came_of: Mapping[Cell, Result], chosen: set[Cell]) -> str:
    if cell.impossible:
        return IMPOSSIBLE
    result = came_of.get(cell)
    if result is None:
        return ""
    return (HELD if result.green else BROKEN) + ("*" if cell in chosen else "")


LINK = {Action.CUT: "its link is cut", Action.PAUSE: "its link hangs"}
DAEMON = {Action.KILL: "kill -9", Action.RESTART: "restart", Action.PAUSE: "SIGSTOP"}


def engine(results: Iterable[Result], faults: Mapping[Action, str]) -> str:
    """The cells of a real engine, with the names of the faults that it met."""
    came_of = {(result.cell.action, result.cell.point): result for result in results}
    points = sorted({point for _, point in came_of})
    lines = ["| fault | " + " | ".join(points) + " |", "|---|" + "---|" * len(points)]
    for action, name in faults.items():
        words = [HELD if came_of[action, point].green else BROKEN for point in points]
        lines.append(f"| {name} | {' | '.join(words)} |")
    return "\n".join(lines)


def storm(figures: Figures) -> str:
    lines = ["| what | number |", "|---|---|"]
    lines += [f"| provisions | {figures.provisions} |", f"| minutes | {figures.minutes:.0f} |"]
    lines += [f"| jobs served | {figures.jobs_done} |", f"| faults of the fleet | {figures.faults.total()} |"]
    lines += [f"| {kind.value} | {figures.found[kind]} |" for kind in Kind]
    lines += ["", f"Seed {figures.seed}.", ""]
    for name, counted in (
        ("Faults", figures.faults),
        ("Meant for provisions", figures.fates),
        ("Happened to them", figures.landed),
        ("Ends", figures.ends),
    ):
        lines.append(f"- {name}: " + ", ".join(f"{what} {number}" for what, number in sorted(counted.items())))
    return "\n".join(lines)
