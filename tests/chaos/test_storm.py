"""Everything at once, for half a minute: what no single edge shows. With histories replayed at every task, too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from hatchway.client import Started
from hatchway.errors import DestroyError, PermanentSpawnError, SpawnCode, StoreUnreachable, TransientSpawnError
from tests.support import lab as lab_module
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces, until
from tests.support.scripted import straight_on
from tests.support.stack import laptop

CAP = 6
JOBS = 25
DISPATCHERS = 12
STORM_S = 30.0
ENDS_WITHIN_S = 180.0
SLOW = {RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED}
EXPECTED = (
    RPCError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError, IndexError,
)  # fmt: skip
BUGS = {
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
}
"""Other causes are the server's: a reset, or a message that came just before the end."""


class Storm:
    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.dice = lab, random.Random(seed)  # noqa: S311 - repeatable, no secret
        self.terminated: set[str] = set()
        """Nobody cleans up after these but the next offer of the job, and a reaper."""
        self.agents: set[str] = set()

    def break_the_backend(self) -> None:
        lost = TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, "the reply was lost")
        missing = PermanentSpawnError(SpawnCode.IMAGE_NOT_FOUND, "there is no such image")
        backend = self.lab.backend
        backend.before_create = self._fails(missing, 0.1)
        backend.after_create = self._fails(lost, 0.1)
        backend.before_destroy = backend.after_destroy = self._fails(DestroyError("the engine answered 500"), 0.2)

    def mend_the_backend(self) -> None:
        backend = self.lab.backend
        backend.before_create = backend.after_create = straight_on
        backend.before_destroy = backend.after_destroy = straight_on

    def _fails(self, error: Exception, chance: float) -> Callable[[str], Awaitable[None]]:
        async def step(_agent_id: str) -> None:
            await asyncio.sleep(self.dice.random() * 0.3)
            if self.dice.random() < chance:
                raise error

        return step

    async def dispatch(self) -> None:
        """Offer one of the jobs, and do to its provision what comes up."""
        try:
            started = await self.lab.provision(
                job_id=f"job-{self.dice.randrange(JOBS)}", adoption_timeout=3,
                max_lifetime=self.dice.choice([None, 3]), wait_timeout=self.dice.choice([2, 60]),
            )  # fmt: skip
        except RPCError as e:
            if e.status not in SLOW:
                raise
            return  # of a server in a storm: another one is offered
        self.agents.add(started.agent_id)
        await asyncio.sleep(self.dice.random() * 1.5)
        for _ in range(self.dice.randrange(1, 5)):
            # It may have ended, or refuse, or have no task yet that it could be reset to.
            with suppress(*EXPECTED):
                await asyncio.wait_for(self._one_thing(started), 5)
            await asyncio.sleep(self.dice.random() * 0.3)

    async def _one_thing(self, started: Started) -> None:
        lab, dice = self.lab, self.dice
        things: list[tuple[int, Callable[[], Awaitable[Any]]]] = [
            (6, lambda: lab.adopt(started)),
            (4, lambda: lab.complete(started)),
            (1, lambda: lab.hatchway.cancel(started.workflow_id)),
            (1, lambda: self._terminate(started)),
            (1, lambda: lab.release(started, now=dice.random() < 0.5)),
            (1, lambda: lab.exits(started)),
            (1, lambda: lab.condemn(started)),
            (1, lambda: lab.signal(started, "granted", {"agent_id": started.agent_id})),
            (1, lambda: lab.reset(started, to_start=dice.random() < 0.5)),
            (1, lambda: lab.provision(f"other-{dice.random()}", job_id=f"job-{dice.randrange(JOBS)}", wait_timeout=2)),
        ]
        weights, actions = zip(*things, strict=True)
        await dice.choices(actions, weights)[0]()

    async def _terminate(self, started: Started) -> None:
        self.terminated.add(started.agent_id)
        await self.lab.run_of(started, started.run_id).terminate("by the storm")

    async def everything_ends(self) -> None:
        async def nothing_open() -> bool:
            found = [w.id async for w in self.lab.temporal.list_workflows('ExecutionStatus = "Running"')]
            for workflow_id in found:
                if not workflow_id.startswith("teardown/"):
                    await self._cancel(workflow_id)
            await asyncio.sleep(0.5)  # the list lags behind
            return not found

        await until(nothing_open, ENDS_WITHIN_S)

    async def _cancel(self, workflow_id: str) -> None:
        try:
            await self.lab.temporal.get_workflow_handle(workflow_id).cancel()
        except RPCError as e:
            if e.status is not RPCStatusCode.NOT_FOUND:  # it has ended since it was listed
                raise


async def _never_above_the_cap(lab: Lab) -> None:
    while True:
        with suppress(StoreUnreachable):  # all its connections are taken: the next look
            assert len(await lab.slots.list()) <= CAP
        assert len(lab.cloud.live) <= CAP
        await asyncio.sleep(0.05)


async def _no_bug_was_met(lab: Lab) -> None:
    async for found in lab.temporal.list_workflows():
        run = lab.temporal.get_workflow_handle(found.id, run_id=found.run_id)
        async for event in run.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                assert event.workflow_task_failed_event_attributes.cause not in BUGS, (found.id, event)


@pytest.mark.parametrize("cached", [1000, 1, 0], ids=["cached", "one cached", "never cached"])
async def test_after_a_storm_rows_counters_and_compute_agree(
    namespaces: Namespaces, database_url: str, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worker(*args: Any, **settings: Any) -> Worker:
        if "workflows" in settings:
            settings["max_cached_workflows"] = cached
        return Worker(*args, **settings)

    monkeypatch.setattr(lab_module, "Worker", worker)
    config = laptop(maxAgents=CAP, stopGraceSeconds=0)
    async with running_lab(namespaces, database_url, config) as lab:
        storm = Storm(lab, seed=cached)
        storm.break_the_backend()
        watching = asyncio.create_task(_never_above_the_cap(lab))
        ends_at = asyncio.get_running_loop().time() + STORM_S

        async def dispatcher() -> None:
            while asyncio.get_running_loop().time() < ends_at:
                await storm.dispatch()

        async with asyncio.TaskGroup() as dispatchers:
            for _ in range(DISPATCHERS):
                dispatchers.create_task(dispatcher())
        storm.mend_the_backend()
        await storm.everything_ends()
        assert not watching.done(), watching.exception()
        watching.cancel()

        held = {row.agent_id for row in await lab.slots.list()}
        waiting = {agent for (agent,) in await lab.db.fetch_all("select agent_id from scaler_waiters")}
        used = await lab.db.fetch_all("select agents from scaler_capacity where scope <> 'global'")
        assert set(lab.cloud.live) <= held
        assert held | waiting <= storm.terminated
        assert used == [(len(held),)]
        assert [agent for agent in storm.agents if lab.cloud.created(agent) > 1] == []
        await _no_bug_was_met(lab)
