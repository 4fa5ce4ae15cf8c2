"""Runs pgbench, so that our calls and what they are measured against have the same driver."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

_PROCESSED = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_RATE = re.compile(r"^tps = ([\d.]+) ", re.MULTILINE)


class PgbenchError(Exception):
    """pgbench did not run, or a statement failed. Carries what it said."""


@dataclass(frozen=True, slots=True)
class Ran:
    transactions: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Pgbench:
    """A way to one server: the program, and how hard to drive. `address` replaces the DSN's, to go through a proxy."""

    program: Path
    connections: int
    seconds: int
    address: tuple[str, int] | None = None

    async def run(self, dsn: str, script: str) -> Ran:
        """Run the script over and over, on every connection at once. Raises PgbenchError."""
        printed = await self._run(dsn, script, f"--time={self.seconds}")
        processed, rate = _PROCESSED.search(printed), _RATE.search(printed)
        if not processed or not rate:
            raise PgbenchError(f"pgbench did not say how much it did: {printed}")
        return Ran(int(processed[1]), float(rate[1]))

    async def times(self, dsn: str, script: str, count: int) -> list[float]:
        """How long each of `count` runs of the script took, in milliseconds. Raises PgbenchError."""
        with tempfile.TemporaryDirectory() as directory:
            await self._run(dsn, script, f"--transactions={count}", "--log", f"--log-prefix={directory}/log")
            (log,) = Path(directory).iterdir()
            return [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]

    async def _run(self, dsn: str, script: str, *options: str) -> str:
        server = conninfo_to_dict(dsn)
        host, port = self.address or (str(server["host"]), int(str(server["port"])))
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            process = await asyncio.create_subprocess_exec(
                self.program, "--no-vacuum", "--protocol=simple", f"--client={self.connections}", "--jobs=1",
                f"--file={file.name}", *options,
                f"--host={host}", f"--port={port}", f"--username={server['user']}", str(server["dbname"]),
                env={**os.environ, "PGPASSWORD": str(server["password"])},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            printed, complaints = (text.decode() for text in await process.communicate())
        if process.returncode:
            raise PgbenchError(f"pgbench ended with {process.returncode}: {complaints.strip()[-2000:] or printed}")
        return printed
