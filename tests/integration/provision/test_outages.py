"""Everything that a provision stands on goes away for a while, at every state: it goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hatchway.client import Started
from hatchway.dev.ports import free_port
from hatchway.dev.temporal import EmbeddedTemporal
from hatchway.model import EndReason, ProvisionState
from hatchway.store.pool import Database
from tests.support.lab import Lab, running_lab
from tests.support.lab_worker import DiskCloud, Fleet
from tests.support.namespaces import Namespaces, until
from tests.support.postgres_fixtures import PostgresServer, running_postgres
from tests.support.scripted import ScriptedBackend
from tests.support.stack import laptop
from tests.support.states import AT, let_go

S = ProvisionState
AWAY = 30.0  # seconds
STEPS = ["before_create", "after_create", "before_destroy", "after_destroy"]


async def _finish(lab: Lab, started: Started, state: str) -> None:
    """Whatever the provision needs to come to its end, whichever state it was caught in."""
    await let_go(lab, started)
    if state == "tearing-down":
        await lab.failure(started)
    else:
        status = await lab.reaches(started, S.AWAITING_ADOPTION, S.ACTIVE)
        if status.state is S.AWAITING_ADOPTION:
            await lab.adopt(started)
        await lab.complete(started)
        assert (await lab.outcome(started)).end_reason is EndReason.COMPLETED
    assert lab.cloud.created(started.agent_id) == 1
    await lab.nothing_left()


@pytest.mark.scenario("S37")
async def test_postgres_away_for_half_a_minute_at_every_state(namespaces: Namespaces) -> None:
    with running_postgres() as postgres:
        async with _labs(namespaces, postgres) as labs:
            started = {state: await AT[state](lab) for state, lab in labs.items()}

            postgres.server.stop()
            for state, lab in labs.items():
                if state == "spawned-unacknowledged":  # its next step, the confirmation, meets the outage
                    await _open_gates(lab)
            effects = {state: list(lab.cloud.log) for state, lab in labs.items() if state == "queued"}
            await asyncio.sleep(AWAY)
            assert {state: list(labs[state].cloud.log) for state in effects} == effects  # nothing without a slot
            postgres.server.start()

            await asyncio.gather(*(_finish(lab, started[state], state) for state, lab in labs.items()))


async def test_temporal_away_for_half_a_minute_at_every_state(tmp_path: Path, postgres: PostgresServer) -> None:
    port = free_port()
    async with EmbeddedTemporal(tmp_path, port=port, ui=False) as server:
        namespaces = Namespaces(server.address)
        async with _labs(namespaces, postgres) as labs:
            started = {state: await AT[state](lab) for state, lab in labs.items()}
            namespaces.stop()

            await server.stop()
            await asyncio.sleep(AWAY)
            await server.start()

            await asyncio.gather(*(_finish(lab, started[state], state) for state, lab in labs.items()))


@asynccontextmanager
async def _labs(namespaces: Namespaces, postgres: PostgresServer) -> AsyncIterator[dict[str, Lab]]:
    """One lab for each state, each on a database and a namespace of its own."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as exits:
        yield {state: await exits.enter_async_context(running_lab(namespaces, postgres.database())) for state in AT}


async def _open_gates(lab: Lab) -> None:
    gate = lab.backend.after_create
    gate.open()  # type: ignore[attr-defined]


# ── kill -9 ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scenario("S01", "S02")
@pytest.mark.parametrize("second_host", [False, True], ids=["restarted", "second-host-first"])
async def test_a_worker_killed_at_any_step_leaves_one_compute_and_then_none(
    namespaces: Namespaces, postgres: PostgresServer, tmp_path: Path, second_host: bool
) -> None:
    """kill -9 between the create call and its acknowledgement, and around the destroy; all steps side by side."""
    await asyncio.gather(*(_killed_at(step, namespaces, postgres, tmp_path / step, second_host) for step in STEPS))


async def _killed_at(
    step: str, namespaces: Namespaces, postgres: PostgresServer, directory: Path, second_host: bool
) -> None:
    directory.mkdir()
    dsn = postgres.database()
    async with Database.open(dsn) as db:
        lab = await Lab.on(await namespaces.take(), db, ScriptedBackend(DiskCloud(directory)))
        await lab.apply(laptop())
        fleet = Fleet(lab, dsn, directory)
        try:
            doomed = await fleet.start("host-1", step)
            started = await lab.provision(job_id="job-1")
            if "destroy" in step:
                await lab.reaches(started, S.AWAITING_ADOPTION)
                await lab.adopt(started)
                await lab.complete(started)
            await until((directory / f"reached-{step}").exists)

            os.kill(doomed.pid, signal.SIGKILL)
            await doomed.wait()
            if second_host:
                await fleet.start("host-2")
                await asyncio.sleep(1)
            await fleet.start("host-1")

            if "create" in step:
                await lab.reaches(started, S.AWAITING_ADOPTION)
                await lab.adopt(started)
                await lab.complete(started)
            outcome = await asyncio.wait_for(lab.hatchway.outcome(started), 120)
            assert outcome.end_reason is EndReason.COMPLETED, step
            assert len(fleet.effects("created")) == 1, (step, DiskCloud.effects(directory))
            assert {effect[2] for effect in DiskCloud.effects(directory)} == {"host-1"}, step
            await until(lambda: not list((directory / "live").iterdir()))
            await lab.nothing_left()
        finally:
            await fleet.stop()
