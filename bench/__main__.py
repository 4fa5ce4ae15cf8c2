"""`python -m bench [PART …]`: print every figure; exit 1 when a median is under its floor or above its ceiling."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog

from bench import burst, handover, provisions, reap, reserves, scale
from bench.figures import HEADINGS, Amount, Line, out_of_bounds
from hatchway.dev.temporal import EmbeddedTemporal
from tests.support.postgres_fixtures import PostgresServer, running_postgres

SETTINGS = {"fsync": "off", "full_page_writes": "off"}
"""No flush of the disk, which costs both sides the same and hides what each of them does. Everything else is stock."""

PARTS = ("reserves", "scale", "provisions", "handover", "burst", "reap")


async def measure(parts: list[str], server: PostgresServer) -> list[Line | Amount]:
    """Every line of the chosen parts, printed as soon as it is known."""
    print(HEADINGS, flush=True)
    lines: list[Line | Amount] = []
    if "reserves" in parts:
        lines += _shown(await reserves.lines(server))
    if "scale" in parts:
        lines += _shown(await scale.lines(server))
    whole = {"provisions": provisions, "handover": handover, "burst": burst, "reap": reap}
    if chosen := [part for name, part in whole.items() if name in parts]:
        with tempfile.TemporaryDirectory(prefix="hatchway-bench-") as directory:
            async with EmbeddedTemporal(Path(directory), persistent=False, ui=False) as temporal:
                for part in chosen:
                    lines += _shown(await part.lines(server, temporal.address))
    return lines


def _shown(lines: Sequence[Line | Amount]) -> Sequence[Line | Amount]:
    for line in lines:
        print(line, flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Figures against their bounds.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    # Every run of a workflow loads its module into a sandbox of its own. An installed worker finds it compiled; so must
    # this one, whatever the environment says, or each provision would pay for a compilation.
    sys.dont_write_bytecode = False
    # A line for each of a thousand agents that were condemned is no figure.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with running_postgres(settings=SETTINGS) as server:
        failed = out_of_bounds(asyncio.run(measure(parts, server)))
    for line in failed:
        bound = f"the floor is {line.floor}" if line.ceiling is None else f"the ceiling is {line.ceiling}"
        print(f"out of bounds: {line.title}: {line.figure:.2f}, {bound}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the SDK's native threads can abort an interpreter that is being finalised
