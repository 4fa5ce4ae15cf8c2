"""A queue that is to be polled in another way has somebody who polls it all the while."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from hatchway.handing_back import HandingBack
from hatchway.queue_workers import Key, QueueWorkers
from hatchway.task_queues import CONTROL, spawn_queue
from tests.support.namespaces import Namespaces, until

QUEUE = spawn_queue("one")


@workflow.defn(name="Ask")
class Ask:
    @workflow.run
    async def run(self, which: str) -> str:
        answer: str = await workflow.execute_activity(
            which, task_queue=QUEUE, start_to_close_timeout=timedelta(minutes=5), result_type=str
        )
        return answer


class Served:
    """A queue with one activity that ends when it is let, and one that says by what it was served."""

    def __init__(self, temporal: Client) -> None:
        self.temporal = temporal
        self.workers = QueueWorkers[str](temporal)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    def make(self, key: Key, by: str, client: Client) -> Worker:
        @activity.defn(name="long")
        async def long() -> str:
            self.begun.set()
            await self.may_end.wait()
            return by

        @activity.defn(name="short")
        async def short() -> str:
            return by

        return Worker(
            client, task_queue=key[0], activities=[long, short], max_concurrent_activities=key[1],
            graceful_shutdown_timeout=timedelta(minutes=5),
        )  # fmt: skip

    async def ask(self, which: str) -> str:
        answer: str = await self.temporal.execute_workflow(
            "Ask", which, id=f"ask-{uuid.uuid4()}", task_queue=CONTROL, result_type=str
        )
        return answer


@pytest.fixture
async def served(namespaces: Namespaces) -> AsyncIterator[Served]:
    temporal = await namespaces.take()
    served = Served(temporal)
    async with Worker(temporal, task_queue=CONTROL, workflows=[Ask], workflow_runner=UnsandboxedWorkflowRunner()):
        yield served
        served.may_end.set()
        assert await served.workers.shut_down(HandingBack(), timedelta(minutes=1), asyncio.Event())


@pytest.mark.parametrize(
    ("wanted", "by"),
    [({(QUEUE, 2): "engine-1"}, "engine-1"), ({(QUEUE, 1): "engine-2"}, "engine-2")],
    ids=["more slots", "another engine"],
)
async def test_the_next_one_polls_while_what_runs_in_the_one_before_goes_on(
    served: Served, wanted: dict[Key, str], by: str
) -> None:
    await served.workers.keep({(QUEUE, 1): "engine-1"}, served.make)
    long = asyncio.create_task(served.ask("long"))
    await served.begun.wait()

    await served.workers.keep(wanted, served.make)

    assert await asyncio.wait_for(served.ask("short"), 30) == by
    assert not long.done()
    served.may_end.set()
    assert await long == "engine-1"


async def test_back_and_forth_leaves_one_that_polls(served: Served) -> None:
    for slots in (1, 2, 1, 2, 1):
        await served.workers.keep({(QUEUE, slots): "engine-1"}, served.make)

    assert await asyncio.wait_for(served.ask("short"), 30) == "engine-1"
    assert served.workers.polled == [QUEUE]


async def test_without_a_further_connection_the_queue_is_polled_as_soon_as_there_is_one(served: Served) -> None:
    refused: list[str] = []

    async def refuse(client: Client) -> Client:
        refused.append(client.namespace)
        raise RuntimeError("connection refused")

    served.workers = QueueWorkers[str](served.temporal, refuse)
    await served.workers.keep({(QUEUE, 1): "engine-1"}, served.make)
    long = asyncio.create_task(served.ask("long"))
    await served.begun.wait()
    await served.workers.keep({(QUEUE, 2): "engine-1"}, served.make)
    unpolled = served.workers.polled

    served.may_end.set()
    await long

    async def polled() -> bool:
        await served.workers.keep({(QUEUE, 2): "engine-1"}, served.make)
        return (QUEUE, 2) in served.workers

    await until(polled)
    assert refused
    assert unpolled == []
    assert await asyncio.wait_for(served.ask("short"), 30) == "engine-1"
