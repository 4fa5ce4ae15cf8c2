"""A host id that comes to mean another container engine: no slot is free while the agent's compute may stand.

`hatchway worker --host-id rack-1`, whose scaler's `host:` was edited and which was started again: it polls the queue of
the engine that it served before, under the same name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from hatchway.backends.base import Accepted, Gone, SpawnSpec
from hatchway.cli import doctor_workflows
from hatchway.client import Started
from hatchway.errors import DestroyError, ErrorType
from hatchway.model import ComputeRef, ProvisionState, ScaleDownReason, TeardownFacts
from hatchway.store.presence import Presence
from tests.integration.reap.facts import aged, quick
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import Cloud, ScriptedBackend

S = ProvisionState
LONG_AGO = 3600


@dataclass
class Engine(ScriptedBackend):
    """Sees its own containers only, and answers for nobody else's, as the container backend does."""

    engine: str = "engine-1"

    async def engine_id(self) -> str:
        return self.engine

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        if self.cloud.live.get(agent_id) is None and facts.engine not in (None, self.engine):
            self.cloud.log.append(("asked to destroy", agent_id, self.host))
            raise DestroyError(f"it is on engine {facts.engine}, and this is {self.engine}")
        return await super().destroy(agent_id, facts, reason)

    def moved(self) -> Engine:
        """Another engine under the same host id, and nothing on it."""
        return Engine(Cloud(), host=self.host, engine="engine-2")


@pytest.fixture
async def lab(namespaces: Namespaces, database_url: str) -> AsyncIterator[Lab]:
    async with running_lab(namespaces, database_url, quick(stopGraceSeconds=0)) as running:
        await running.stop_host("host-1")
        await Presence(running.db).instance_beat("worker-1", "worker", "1", ["host-1"], "boot")
        yield running


async def _on_engine_1(lab: Lab) -> tuple[Engine, Started]:
    """An agent of engine 1, whose host is then served by engine 2."""
    first = Engine(lab.cloud)
    lab.start_host(first)
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.stop_host("host-1")
    return first, started


async def _refused(lab: Lab, cloud: Cloud, started: Started) -> None:
    await until(lambda: ("asked to destroy", started.agent_id, "host-1") in cloud.log, what="a teardown there")


@pytest.mark.parametrize("completed", [False, True], ids=["cancelled", "in one step, when it had completed"])
async def test_a_slot_stays_held_while_another_engine_answers_for_its_host(lab: Lab, completed: bool) -> None:
    first, started = await _on_engine_1(lab)
    moved = first.moved()
    lab.start_host(moved)
    if completed:
        await lab.adopt(started)
        await lab.complete(started)
    else:
        await lab.hatchway.cancel(started.workflow_id, "by test")
    await _refused(lab, moved.cloud, started)
    await aged(lab.db, "closing_at", LONG_AGO, started.agent_id)

    async def told() -> str | None:
        findings = [one async for one in doctor_workflows.provisions(lab.db, lab.temporal)]
        return findings[0].what if findings and "engine-1" in findings[0].what else None

    what = await until(told, what="doctor naming the engine")
    held = await lab.slots.list()
    await lab.stop_host("host-1")
    lab.start_host(first)
    await lab.nothing_left()

    assert "it is on engine engine-1, and this is engine-2" in str(what)
    assert [(row.agent_id, row.engine) for row in held] == [(started.agent_id, "engine-1")]


async def test_the_engine_is_on_record_before_anything_is_made_on_it(lab: Lab) -> None:
    """A worker that is killed right after the create leaves no answer: only what was said before counts."""
    seen: list[str | None] = []

    async def look(agent_id: str) -> None:
        row = await lab.slots.get(agent_id)
        seen.append(row.engine if row else None)

    first = Engine(lab.cloud, before_create=look)
    lab.start_host(first)

    started = await lab.provision()

    status = await lab.reaches(started, S.AWAITING_ADOPTION)
    assert seen == ["engine-1"]
    assert status.compute == ComputeRef(backend="bare-metal", ref=started.agent_id, host_id="host-1")
    await lab.hatchway.cancel(started.workflow_id, "by test")
    await lab.nothing_left()


async def test_a_spawn_is_not_repeated_on_another_engine(lab: Lab) -> None:
    """Each would have one, and the teardown finds one."""
    made: list[str] = []

    async def lost(agent_id: str) -> None:
        made.append(agent_id)
        raise ConnectionResetError("the answer was lost")

    first = Engine(lab.cloud, after_create=lost)
    moved = first.moved()
    lab.start_host(first)
    started = await lab.provision(job_id="job-1", spawn_timeout=60)
    await until(lambda: made)
    await lab.stop_host("host-1")
    lab.start_host(moved)

    failed = await lab.failure(started)

    assert failed.error_type == ErrorType.SPAWN_FAILED
    assert "engine-1" in str(failed)
    assert moved.cloud.log == [("asked to destroy", started.agent_id, "host-1")] * len(moved.cloud.log)
    assert [row.agent_id for row in await lab.slots.list()] == [started.agent_id]
    await lab.stop_host("host-1")
    first.after_create = Engine(Cloud()).after_create
    lab.start_host(first)
    await lab.nothing_left()


async def test_a_backend_without_an_engine_is_asked_for_none(lab: Lab) -> None:
    specs: dict[str, SpawnSpec] = {}
    lab.start_host(ScriptedBackend(lab.cloud, specs=specs))

    started = await lab.provision()
    await lab.reaches(started, S.AWAITING_ADOPTION)

    row = await lab.slots.get(started.agent_id)
    assert row is not None
    assert (row.engine, list(specs)) == (None, [started.agent_id])
    await lab.hatchway.cancel(started.workflow_id, "by test")
    await lab.nothing_left()
