"""Installations keep to themselves; a copy of a database ends nothing of the original's."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

import worker
from hatchway.errors import ErrorType
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import become_another, installation, retie_namespace
from hatchway.store.pool import Database
from hatchway.tie import TiedElsewhere
from tests.integration.reclaim.rig import Home, SharedCloud, at_home, reclaim
from tests.support.namespaces import Namespaces
from tests.support.postgres_fixtures import PostgresServer


def an_agent_id() -> str:
    return f"scaler-{uuid.uuid4().hex}"


def copied(original: str, postgres: PostgresServer) -> str:
    """The original's data in a new database, as a backup that is restored elsewhere."""
    copy, tools = postgres.empty_database(), postgres.server.bin_dir
    dump = subprocess.run([tools / "pg_dump", "--dbname", original], capture_output=True, check=True)
    restore = [str(tools / "psql"), "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", copy]
    subprocess.run(restore, input=dump.stdout, capture_output=True, check=True)
    return copy


@pytest.fixture
async def production(namespaces: Namespaces, database_url: str) -> AsyncIterator[Home]:
    async with at_home(await namespaces.take(), database_url, SharedCloud()) as home:
        yield home


@pytest.fixture
async def staging(namespaces: Namespaces) -> Client:
    """Another namespace, for a copy."""
    return await namespaces.take()


@asynccontextmanager
async def restored(production: Home, postgres: PostgresServer) -> AsyncIterator[str]:
    copy = copied(production.database_url, postgres)
    try:
        yield copy
    finally:
        postgres.drop(copy)


async def _refused_to_start(database_url: str, temporal: Client) -> str:
    """What a worker says that does not even begin to poll."""
    with tempfile.TemporaryDirectory() as directory:
        settings = worker.WorkerSettings(database_url=database_url, state_dir=Path(directory), host_id="host-1")
        with pytest.raises(TiedElsewhere) as refused:
            await asyncio.wait_for(worker.run(settings, temporal=temporal, stop=asyncio.Event()), 30)
    return str(refused.value)


async def test_two_installations_on_one_engine_end_nothing_of_each_other(
    production: Home, namespaces: Namespaces, fresh_database: Callable[[], str]
) -> None:
    async with at_home(await namespaces.take(), fresh_database(), production.cloud) as other:
        ours = {(await production.at_work(job_id=f"job-{n}")).agent_id for n in range(3)}
        theirs = {(await other.at_work(job_id=f"job-{n}")).agent_id for n in range(3)}
        our_orphan, their_orphan = an_agent_id(), an_agent_id()
        await production.orphan(our_orphan)
        await other.orphan(their_orphan)

        outcomes = [await home.reclaim() for _ in range(3) for home in (production, other)]

    assert set(production.cloud.live) == ours | theirs
    assert [outcome.reclaimed for outcome in outcomes[2:4]] == [[our_orphan], [their_orphan]]
    assert sorted(production.cloud.asked_for()) == sorted([our_orphan, their_orphan])


async def test_a_copy_that_is_started_in_another_namespace_ends_nothing_and_says_so(
    production: Home, staging: Client, postgres: PostgresServer
) -> None:
    """The copy knows neither the agents that have begun since, nor that some of its own have ended."""
    known = [(await production.at_work(job_id=f"job-{n}")).agent_id for n in range(2)]
    async with restored(production, postgres) as copy:
        since = [(await production.at_work(job_id=f"later-{n}")).agent_id for n in range(2)]

        said = await _refused_to_start(copy, staging)
        async with at_home(staging, copy, production.cloud, tied=False):
            failures = [await _stands_down(staging) for _ in range(3)]

    assert set(production.cloud.live) == {*known, *since}
    assert production.cloud.asked_for() == []
    for words in (said, *failures):
        assert "belongs to another Temporal namespace" in words
        assert "--retie" in words
        assert "--as-copy" in words


async def _stands_down(temporal: Client) -> str:
    with pytest.raises(WorkflowFailureError) as failure:
        await reclaim(temporal)
    assert isinstance(failure.value.cause, ApplicationError)
    assert failure.value.cause.type == ErrorType.RECLAIM_FAILED
    return failure.value.cause.message


async def test_a_copy_that_becomes_an_installation_of_its_own_leaves_the_originals_agents_alone(
    production: Home, staging: Client, postgres: PostgresServer
) -> None:
    known = {(await production.at_work(job_id=f"job-{n}")).agent_id for n in range(2)}
    async with restored(production, postgres) as copy:
        async with Database.open(copy) as db:
            before, after = await installation(db), await become_another(db, await namespace_uuid(staging))
            again = await become_another(db, await namespace_uuid(staging))
        async with at_home(staging, copy, production.cloud) as own:
            rows = await own.lab.slots.list()
            counted = await own.lab.db.fetch_all("select scope from scaler_capacity where agents <> 0")
            own_agent = (await own.at_work(job_id="job-1")).agent_id
            outcomes = [await home.reclaim() for _ in range(3) for home in (production, own)]

    assert after.installation_id != before.installation_id
    assert again == after
    assert (rows, counted) == ([], [])
    assert set(production.cloud.live) == {*known, own_agent}
    assert {outcome.seen for outcome in outcomes} == {2, 1}
    assert production.cloud.asked_for() == []


async def test_a_database_that_has_moved_knows_its_agents_again(
    production: Home, staging: Client, postgres: PostgresServer
) -> None:
    known = (await production.at_work(job_id="job-1")).agent_id
    orphan = an_agent_id()
    await production.orphan(orphan)
    async with restored(production, postgres) as moved:
        async with Database.open(moved) as db:
            before, after = await installation(db), await retie_namespace(db, await namespace_uuid(staging))
        async with at_home(staging, moved, production.cloud) as there:
            first, second = await there.reclaim(), await there.reclaim()

    assert after.installation_id == before.installation_id
    assert first.seen == 2
    assert second.reclaimed == [orphan]
    assert set(production.cloud.live) == {known}


async def test_a_worker_of_an_installation_that_is_no_more_reclaims_nothing(production: Home) -> None:
    orphan = an_agent_id()
    await production.orphan(orphan)
    await production.reclaim()
    await production.lab.db.fetch_all("update hatchway_installation set installation_id = gen_random_uuid()")

    said = await _stands_down(production.lab.temporal)

    assert "start it again" in said
    assert set(production.cloud.live) == {orphan}


async def test_without_a_tie_nothing_is_reclaimed(namespaces: Namespaces, database_url: str) -> None:
    cloud, orphan = SharedCloud(), an_agent_id()
    async with at_home(await namespaces.take(), database_url, cloud, tied=False) as home:
        await home.orphan(orphan)

        said = [await _stands_down(home.lab.temporal) for _ in range(3)]

    assert "`hatchway setup`" in said[0]
    assert set(cloud.live) == {orphan}
