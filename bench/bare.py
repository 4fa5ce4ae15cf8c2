"""What a provision is measured against: workflows of as many activities, which do nothing.

Each comes in two kinds. `Bare` and `Shaped` run every activity through a task queue, as anybody would write them.
`LocalBare` and `LocalShaped` take them as a provision does that completes: it reserves and adopts in local activities,
spawns and tears down in remote ones, and upserts once. What it closes and releases is within its teardown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from hatchway import search_attributes
    from hatchway.model import Payload

CONTROL = "bench"
SPAWN = "bench.spawn"
HOST = "bench.host"

LOCAL_LIMIT = timedelta(seconds=2)
REMOTE_LIMIT = timedelta(seconds=30)
DEADLINE = timedelta(minutes=5)


class Nothing(Payload):
    """The input and the answer of every step."""


Spawned = Callable[[str], None]
"""Told the workflow's id when its spawn has been done."""


class BareActivities:
    """Four steps that do nothing."""

    def __init__(self, spawned: Spawned) -> None:
        self._spawned = spawned

    @activity.defn(name="bare_reserve")
    async def reserve(self, ask: Nothing) -> Nothing:
        return ask

    @activity.defn(name="bare_spawn")
    async def spawn(self, ask: Nothing) -> Nothing:
        self._spawned(activity.info().workflow_id or "")
        return ask

    @activity.defn(name="bare_adopt")
    async def adopt(self, ask: Nothing) -> Nothing:
        return ask

    @activity.defn(name="bare_teardown")
    async def teardown(self, ask: Nothing) -> Nothing:
        return ask


Step = Callable[[BareActivities, Nothing], Awaitable[Nothing]]


async def local(step: Step) -> None:
    await workflow.execute_local_activity_method(step, Nothing(), schedule_to_close_timeout=LOCAL_LIMIT)


async def remote(step: Step, queue: str = CONTROL) -> None:
    await workflow.execute_activity_method(step, Nothing(), task_queue=queue, start_to_close_timeout=REMOTE_LIMIT)


@workflow.defn
class Bare:
    """Four activities and nothing else."""

    @workflow.run
    async def run(self, ask: Nothing) -> Nothing:
        await remote(BareActivities.reserve)
        await remote(BareActivities.spawn, SPAWN)
        await remote(BareActivities.adopt)
        await remote(BareActivities.teardown, HOST)
        return ask


@workflow.defn
class LocalBare:
    """The same four, local where a provision's are."""

    @workflow.run
    async def run(self, ask: Nothing) -> Nothing:
        await local(BareActivities.reserve)
        await remote(BareActivities.spawn, SPAWN)
        await local(BareActivities.adopt)
        await remote(BareActivities.teardown, HOST)
        return ask


class WithAnAgent:
    """The timer, update, signal and upsert of a provision, where it has them, around the four activities."""

    def __init__(self, step: Callable[[Step], Awaitable[None]]) -> None:
        self._step = step
        self._adopted = False
        self._released = False

    async def serve(self) -> None:
        await self._step(BareActivities.reserve)
        await remote(BareActivities.spawn, SPAWN)
        await workflow.wait_condition(lambda: self._adopted, timeout=DEADLINE)
        upsert_search_attributes()
        await workflow.wait_condition(lambda: self._released)
        await remote(BareActivities.teardown, HOST)

    @workflow.update
    async def adopt(self, ask: Nothing) -> Nothing:
        await self._step(BareActivities.adopt)
        self._adopted = True
        return ask

    @workflow.signal
    def release(self, ask: Nothing) -> None:
        self._released = True


def upsert_search_attributes() -> None:
    workflow.upsert_search_attributes(
        [
            search_attributes.STATE.value_set("active"),
            search_attributes.AGENT_ID.value_set(workflow.info().run_id),
            search_attributes.SCALER.value_set("bench"),
            search_attributes.RUN_ID.value_set("run"),
        ]
    )


@workflow.defn
class Shaped(WithAnAgent):
    """`Bare` with what a provision has beside its activities."""

    def __init__(self) -> None:
        super().__init__(remote)

    @workflow.run
    async def run(self, ask: Nothing) -> Nothing:
        await self.serve()
        return ask


@workflow.defn
class LocalShaped(WithAnAgent):
    """`LocalBare` with the same."""

    def __init__(self) -> None:
        super().__init__(local)

    @workflow.run
    async def run(self, ask: Nothing) -> Nothing:
        await self.serve()
        return ask


class BareWorkers:
    """The workers of the bare workflows: three queues with the settings that a provision's have."""

    def __init__(self, temporal: Client, spawned: Spawned) -> None:
        steps = BareActivities(spawned)
        self._workers = [
            Worker(
                temporal,
                task_queue=CONTROL,
                workflows=[Bare, LocalBare, Shaped, LocalShaped],
                activities=[steps.reserve, steps.adopt],
                sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
            ),
            Worker(temporal, task_queue=SPAWN, activities=[steps.spawn]),
            Worker(temporal, task_queue=HOST, activities=[steps.teardown]),
        ]
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> BareWorkers:
        for worker in self._workers:
            await self._exits.enter_async_context(worker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._exits.aclose())
