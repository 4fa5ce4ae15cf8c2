"""What every integration test relies on: its own database, and time that can be skipped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
from temporalio import workflow
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from hatchway.store.migrate import HEAD, current_revision


@workflow.defn
class Sleeper:
    """Sleeps an hour, or until it is woken."""

    def __init__(self) -> None:
        self.woken = False

    @workflow.run
    async def run(self) -> bool:
        try:
            await workflow.wait_condition(lambda: self.woken, timeout=timedelta(hours=1))
        except TimeoutError:
            return False
        return True

    @workflow.signal
    def wake(self) -> None:
        self.woken = True


def test_a_database_is_migrated_and_nobody_elses(database_url: str, fresh_database: Callable[[], str]) -> None:
    other = fresh_database()
    with psycopg.connect(database_url) as connection:
        connection.execute("create table mine ()")

    with psycopg.connect(other) as connection:
        found = connection.execute("select to_regclass('mine')").fetchone()

    assert found == (None,)
    assert current_revision(database_url) == current_revision(other) == HEAD


def test_every_installation_has_an_id_of_its_own(fresh_database: Callable[[], str]) -> None:
    ids = set()
    for dsn in (fresh_database(), fresh_database()):
        with psycopg.connect(dsn) as connection:
            ids.add(connection.execute("select installation_id from hatchway_installation").fetchone())

    assert len(ids) == 2


async def test_a_workflow_meets_a_signal_on_its_way_through_skipped_time(
    temporal_skipping: WorkflowEnvironment, task_queue: str
) -> None:
    client = temporal_skipping.client
    async with Worker(client, task_queue=task_queue, workflows=[Sleeper], workflow_runner=UnsandboxedWorkflowRunner()):
        with temporal_skipping.with_time_skipping_disabled():
            woken = await client.start_workflow(Sleeper.run, id=f"{task_queue}-woken", task_queue=task_queue)
        await temporal_skipping.fast_forward(woken, timedelta(minutes=30))
        await woken.signal(Sleeper.wake)
        late = await client.start_workflow(Sleeper.run, id=f"{task_queue}-late", task_queue=task_queue)

        assert await woken.result() is True
        assert await late.result() is False
