"""Gathers what the checker judges: the logs of a fleet, what stands at its end, and where secrets lie."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hatchway.config.current import CurrentConfig
from hatchway.config.versions import capacities
from hatchway.store.config_versions import ConfigVersions
from tests.support.admissions import GLOBAL, Judge, admissions
from tests.support.chaos import processes
from tests.support.chaos.checker import Ended, Evidence, Kind, Violation
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.rows import row_changes
from tests.support.chaos.scalers import FOREIGN, METAL, MOST, MOST_OF_ALL, SECRET

SAMPLE_EVERY = 0.5
LONG_WORD = re.compile(rb"[A-Za-z0-9_-]{40,}")
"""A claim code is 43 of these."""


def caps() -> dict[str, int]:
    return {**MOST, GLOBAL: MOST_OF_ALL}


class Witness:
    """Sees, while a fleet runs, what no log tells: who runs on bare metal, and which claim codes there are."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.seen: list[Violation] = []
        self.codes: set[bytes] = set()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Witness:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watching
        self._watching.cancel()
        await asyncio.wait([self._watching])
        if not self._watching.cancelled():
            self._watching.result()

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(SAMPLE_EVERY)

    def look(self) -> None:
        metal = self._on_metal()
        if len(metal) > MOST[METAL]:
            self.seen.append(
                Violation(Kind.CAP, f"{len(metal)} agents run on bare metal, where {MOST[METAL]} is the cap")
            )
        for pids in processes.of_agents().values():
            for pid in pids:
                self.codes |= set(_claim_codes(pid))

    def _on_metal(self) -> list[str]:
        machines = {path.name for path in (self._fleet.cloud_dir / "machines").iterdir()}
        records = {path.name for path in self._fleet.state_dir.iterdir()} if self._fleet.state_dir.exists() else set()
        return [agent_id for agent_id in processes.of_agents() if agent_id in records and agent_id not in machines]


def _claim_codes(pid: int) -> Iterator[bytes]:
    """What an agent was started with; it stays readable in its own environment, for this machine's root."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return
    for entry in environment.split(b"\0"):
        if entry.startswith(b"KICI_SCALER_CLAIM_CODE="):
            yield entry.partition(b"=")[2]


async def gather(fleet: Fleet, witness: Witness, ends: Iterable[Ended]) -> Evidence:
    """The evidence of now. Everything should have ended and be quiet."""
    version, config = await CurrentConfig(ConfigVersions(fleet.db)).current()
    judge = Judge({number: capacities(config) for number in range(1, version + 1)})
    machines = _machines(fleet)
    foreign = {agent_id for agent_id, installation in machines.items() if installation == FOREIGN}
    held = await fleet.db.fetch_all(
        "select agent_id from scaler_spawning_agents union select agent_id from scaler_waiters order by 1"
    )
    events, rows = fleet.journal.events(), await row_changes(fleet.db)
    ours = {event.agent_id for event in events} | {row.agent_id for row in rows}
    running = ours & set(processes.of_agents())  # wherever they were made; others' are on this machine as well
    return Evidence(
        events=events,
        rows=rows,
        caps=caps(),
        ends=list(ends),
        breaches=judge.breaches(await admissions(fleet.db)),
        left_rows=[agent_id for (agent_id,) in held],
        left_compute=sorted((set(machines) | running) - foreign),
        foreign_left=foreign,
        secrets=sorted(await asyncio.to_thread(_found_secrets, fleet, witness)),
        seen=witness.seen,
    )


def _machines(fleet: Fleet) -> dict[str, str]:
    """Agent id of each machine in the cloud -> the installation that it bears."""
    found = {}
    for path in (fleet.cloud_dir / "machines").iterdir():
        found[path.name] = str(json.loads(path.read_text())["installation"])
    return found


def _found_secrets(fleet: Fleet, witness: Witness) -> set[str]:
    """Names of the files that hold the registry's token or a claim code in the clear."""
    found = set()
    places = [*fleet.logs().values(), *fleet.temporal.directory.glob("temporal.db*")]
    places += [path for path in (fleet.directory / "postgres" / "data" / "base").rglob("*") if path.is_file()]
    for path in places:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # Postgres has made it anew since it was listed
        if SECRET.encode() in content or not witness.codes.isdisjoint(LONG_WORD.findall(content)):
            found.add(str(path.relative_to(fleet.directory)))
    return found
