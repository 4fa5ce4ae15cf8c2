"""Caps that change, workers that die, and agents that come and go: what the capacity tests put under load."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError

from hatchway.client import Started
from hatchway.config.current import apply
from hatchway.config.schema import Config
from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.waiters import Line
from hatchway.waking import wake_all
from tests.integration.capacity.host import EffectLog
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import label_set

ROOT = Path(__file__).parents[3]
GIB = 2**30
AGENT_S = (0.02, 0.3)
"""How long an agent works, from its adoption."""

Numbers = tuple[int | None, int | None, int | None]
"""Caps of a scope: agents, whole CPUs, whole GiB; None is no cap."""


@dataclass(frozen=True, slots=True)
class Caps:
    """One configuration's caps. What is applied and what the judge holds against it are both made of this."""

    everything: Numbers
    pools: dict[str, Numbers]
    scalers: dict[str, tuple[Numbers, str | None]]
    """Name -> its caps, and its pool."""

    def config(self) -> dict[str, Any]:
        agents, cpus, gib = self.everything
        return {
            "version": 1,
            **_unless_none(globalMaxAgents=agents, globalResourceCap=_amounts(cpus, gib)),
            "machinePools": [
                {"name": name, **_unless_none(maxAgents=agents), **(_amounts(cpus, gib) or {})}
                for name, (agents, cpus, gib) in self.pools.items()
            ],
            "scalers": [
                {
                    "name": name,
                    "type": "bare-metal",
                    "labelSets": [{**label_set("linux"), "labels": ["linux", name]}],
                    "stopGraceSeconds": 0,
                    **_unless_none(maxAgents=agents, resourceCap=_amounts(cpus, gib), machinePool=pool),
                }
                for name, ((agents, cpus, gib), pool) in self.scalers.items()
            ],
        }

    def capacities(self) -> list[Capacity]:
        return [
            Capacity("global", None, None, *_units(self.everything)),
            *(Capacity(f"pool:{name}", None, None, *_units(numbers)) for name, numbers in self.pools.items()),
            *(
                Capacity(f"scaler:{name}", name, pool and f"pool:{pool}", *_units(numbers))
                for name, (numbers, pool) in self.scalers.items()
            ),
        ]


def _unless_none(**keys: Any) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


def _amounts(cpus: int | None, gib: int | None) -> dict[str, Any] | None:
    return _unless_none(cpus=cpus, memory=None if gib is None else f"{gib}Gi") or None


def _units(numbers: Numbers) -> Numbers:
    agents, cpus, gib = numbers
    return agents, None if cpus is None else cpus * 1000, None if gib is None else gib * GIB


@dataclass
class Fleet:
    """Worker processes over compute on disk, and the agents that boot there: the test plays those."""

    lab: Lab
    dsn: str
    directory: Path
    scalers: list[str]
    applied: dict[int, list[Capacity]] = field(default_factory=dict)
    """Config version -> its caps, as this test meant them."""
    started: dict[str, Started] = field(default_factory=dict)
    """Agent id -> its provision."""
    kills: int = 0
    _workers: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    # ── configuration ───────────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, caps: Caps) -> None:
        applied = await apply(
            ConfigVersions(self.lab.db), Config.model_validate(caps.config()), source="test", by="test", note=None,
            expected_version=None,
        )  # fmt: skip
        self.applied[applied.version] = caps.capacities()
        await wake_all(self.lab.temporal, self.lab.slots, Line(self.lab.db), applied.wake)

    # ── workers ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, host: str) -> None:
        ready = self.directory / f"ready-{host}"
        ready.unlink(missing_ok=True)
        client = self.lab.temporal
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.capacity.host", client.service_client.config.target_host,
            client.namespace, self.dsn, str(self.directory), host, *self.scalers,
            cwd=ROOT, stderr=(self.directory / f"{host}.err").open("ab"),
        )  # fmt: skip
        self._workers[host] = process
        await until(lambda: ready.exists() or process.returncode is not None, patience=120, what=f"{host} up")
        assert process.returncode is None, (self.directory / f"{host}.err").read_text()[-2000:]

    async def kill(self, host: str) -> None:
        """kill -9."""
        process = self._workers.pop(host)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        self.kills += 1

    async def stop(self) -> None:
        for host in list(self._workers):
            await self.kill(host)

    # ── agents ──────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def agents(self, seed: int) -> AsyncIterator[None]:
        """An agent for every compute that is created meanwhile: it registers, works for a moment, and completes."""
        dice = random.Random(seed)  # noqa: S311 - repeatable, no secret
        log, offset, known = EffectLog(self.directory), 0, set[str]()

        async def watch() -> None:
            nonlocal offset
            async with asyncio.TaskGroup() as group:
                while True:
                    effects, offset = log.new(offset)
                    for effect in effects:
                        if effect.what != "removed" and effect.agent_id not in known:
                            known.add(effect.agent_id)
                            group.create_task(self._live(effect.agent_id, dice.uniform(*AGENT_S)))
                    await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        try:
            yield
            assert not watching.done(), watching.exception()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _live(self, agent_id: str, works_for: float) -> None:
        await until(lambda: agent_id in self.started, what=f"the start of {agent_id} answered")
        started = self.started[agent_id]
        while True:
            try:
                await asyncio.wait_for(self.lab.adopt(started), 5)
            except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
                continue  # its worker was killed: registering again is what an agent does
            except (WorkflowUpdateFailedError, RPCError):
                return  # it was cancelled
            break
        await asyncio.sleep(works_for)
        with suppress(RPCError):  # cancelled meanwhile
            await self.lab.complete(started)
