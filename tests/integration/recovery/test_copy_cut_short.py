"""`hatchway setup --as-copy` that is killed half way: nothing works with the copy yet, and the next call goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest
from temporalio.client import Client

from hatchway.namespace import namespace_uuid
from hatchway.store.installation import become_another, installation, tie_namespace
from hatchway.store.pool import Database
from tests.integration.cli.conftest import Hatchway, clean_environment
from tests.support.namespaces import Namespaces, until

AGENTS = 5000
LAST = f"agent-{AGENTS:05}"
A_LARGE_DATABASE = """
    insert into scaler_capacity (scope, scaler_name) values ('scaler:s', 's');
    insert into scaler_spawning_agents (agent_id, scaler_name, state)
    select 'agent-' || lpad(n::text, 5, '0'), 's', 'active' from generate_series(1, {agents}) n;
    insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes)
    select agent_id, 's', 1, 1 from scaler_spawning_agents;
    insert into scaler_agent_presence (agent_id, instance_id) select agent_id, 'gateway-1' from scaler_spawning_agents;
    insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, spawn)
    select 'waiter-' || n, 1, 's', 3, n, 0, 0, 'w-' || n, '{{}}' from generate_series(1, 1500) n;
"""


@pytest.fixture
async def staging(namespaces: Namespaces) -> Client:
    return await namespaces.take()


@pytest.fixture
async def copy(namespaces: Namespaces, database_url: str) -> AsyncIterator[Database]:
    """A copy of production with many agents."""
    async with Database.open(database_url) as db:
        await tie_namespace(db, await namespace_uuid(await namespaces.take()))
        with psycopg.connect(database_url) as connection:
            connection.execute(A_LARGE_DATABASE.format(agents=AGENTS))
        yield db


async def _agents(db: Database) -> int:
    return int(await db.fetch_value("select count(*) from scaler_spawning_agents"))


async def test_a_copy_that_was_forgotten_half_way_still_belongs_to_the_original_and_the_next_call_goes_on(
    copy: Database, staging: Client, database_url: str
) -> None:
    servers = {
        "DATABASE_URL": database_url,
        "TEMPORAL_ADDRESS": staging.service_client.config.target_host,
        "TEMPORAL_NAMESPACE": staging.namespace,
    }
    command = [sys.executable, "-m", "hatchway.cli", "setup", "--as-copy", "--json"]
    before = await installation(copy)
    with psycopg.connect(database_url) as holding:
        holding.execute("select from scaler_spawning_agents where agent_id = %s for update", (LAST,))
        process = await asyncio.create_subprocess_exec(
            *command, env=clean_environment(servers), stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(lambda: _stands_at_the_last(copy))
        process.kill()
        await process.wait()
    half_way, left = await installation(copy), await _agents(copy)

    refused = await asyncio.to_thread(Hatchway(servers), "setup", "--json")
    done = await asyncio.to_thread(Hatchway(servers), "setup", "--as-copy", "--json")
    after = await installation(copy)

    assert half_way == before
    assert 0 < left < AGENTS
    assert "other_namespace" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert after.installation_id != before.installation_id
    assert after.namespace_uuid == await namespace_uuid(staging)
    for table in ("scaler_spawning_agents", "scaler_reservations", "scaler_waiters", "scaler_agent_presence"):
        assert await copy.fetch_value(f"select count(*) from {table}") == 0  # noqa: S608
    assert await copy.fetch_all("select scope from scaler_capacity where agents <> 0") == []


async def _stands_at_the_last(db: Database) -> bool:
    """Some batches have been committed, and one waits for the row that somebody holds."""
    waiting = await db.fetch_value("select count(*) from pg_locks where not granted")
    return bool(waiting) and 0 < await _agents(db) < AGENTS


async def test_an_installation_of_its_own_forgets_nothing_when_it_is_told_again(
    copy: Database, staging: Client
) -> None:
    """Its agents are its own then."""
    await become_another(copy, await namespace_uuid(staging))
    await copy.fetch_all(
        "insert into scaler_spawning_agents (agent_id, scaler_name, state) values ('own', 's', 'active')"
    )

    await become_another(copy, await namespace_uuid(staging))

    assert await _agents(copy) == 1
