"""`python -m bench [reserves|provisions …]`: print every figure; exit 1 when a median ratio is under its floor."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bench import provisions, reserves
from bench.figures import HEADINGS, Line, under_their_floors
from hatchway.dev.temporal import EmbeddedTemporal
from tests.support.postgres_fixtures import PostgresServer, running_postgres

SETTINGS = {"fsync": "off", "full_page_writes": "off"}
"""No flush of the disk, which costs both sides the same and hides what each of them does. Everything else is stock."""

PARTS = ("reserves", "provisions")


async def measure(parts: list[str], server: PostgresServer) -> list[Line]:
    """Every line of the chosen parts, printed as soon as it is known."""
    print(HEADINGS, flush=True)
    lines: list[Line] = []
    if "reserves" in parts:
        lines += _shown(await reserves.lines(server))
    if "provisions" in parts:
        with tempfile.TemporaryDirectory(prefix="hatchway-bench-") as directory:
            async with EmbeddedTemporal(Path(directory), persistent=False, ui=False) as temporal:
                lines += _shown(await provisions.lines(server, temporal.address))
    return lines


def _shown(lines: list[Line]) -> list[Line]:
    for line in lines:
        print(line, flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios against their floors.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    # Every run of a workflow loads its module into a sandbox of its own. An installed worker finds it compiled; so must
    # this one, whatever the environment says, or each provision would pay for a compilation.
    sys.dont_write_bytecode = False
    with running_postgres(settings=SETTINGS) as server:
        failed = under_their_floors(asyncio.run(measure(parts, server)))
    for line in failed:
        print(f"under its floor: {line.title}: {line.ratio:.2f}, the floor is {line.floor}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the SDK's native threads can abort an interpreter that is being finalised
