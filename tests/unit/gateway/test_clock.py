"""Every age and expiry is judged by the database's clock: neither gateway nor agent may look at its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hatchway import agent, gateway

SOURCES = [Path(agent.__file__), *sorted(Path(gateway.__file__).parent.glob("*.py"))]
WALL_CLOCK = {"time", "time_ns", "now", "utcnow", "today", "fromtimestamp", "localtime", "gmtime"}


@pytest.mark.scenario("S35")
@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_no_wall_clock_is_read(source: Path) -> None:
    reads = [
        node.attr
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in WALL_CLOCK and isinstance(node.ctx, ast.Load)
    ]

    assert reads == []
