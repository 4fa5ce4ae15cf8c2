"""A real agent at a real gateway, busy while Postgres is set back to before it began: it finishes its job."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hatchway.model import EndReason, JobResult, ProvisionState
from hatchway.namespace import namespace_uuid
from hatchway.store.installation import tie_namespace
from tests.integration.reclaim.rig import paused, reclaim
from tests.integration.recovery.test_restored_backup import Backup
from tests.support.chaos.processes import signal_agent
from tests.support.namespaces import Namespaces, until
from tests.support.postgres_fixtures import PostgresServer
from tests.support.stack import Stack, label_set, laptop, running_stack

S = ProvisionState
HOST = "the-host"


@pytest.fixture
def may_end() -> Iterator[Path]:
    """The job ends when this file is there. Agents run as nobody, to whom pytest's own directories are closed."""
    with tempfile.TemporaryDirectory(prefix="hatchway-busy-agent-") as directory:
        Path(directory).chmod(0o711)
        yield Path(directory, "may-end")


@pytest.fixture
async def stack(namespaces: Namespaces, database_url: str, may_end: Path) -> AsyncIterator[Stack]:
    job = label_set("job", "/bin/sh", "-c", f"while [ ! -e {may_end} ]; do sleep 0.1; done")
    config = {**laptop(labelSets=[job]), "reaper": {"agentTimeoutSeconds": 3}}
    gateway = {"heartbeat_interval": 1, "heartbeat_timeout": 3}
    async with running_stack(namespaces, database_url, config, gateway=gateway, host_id=HOST) as running:
        await tie_namespace(running.db, await namespace_uuid(running.temporal))
        await paused(running.temporal, HOST)
        yield running


async def test_a_busy_agent_that_began_after_the_backup_finishes_its_job(
    stack: Stack, postgres: PostgresServer, may_end: Path
) -> None:
    """It is held still from the restore until the reclaim pass, as the gateways of the procedure are."""
    backup = Backup(postgres, stack.database_url)
    backup.make()
    started = await stack.provision(labels=["job"], job_id="job-1")
    await stack.reaches(started, S.ACTIVE)
    # Right after a heartbeat: none is on its way, to be refused once the row is gone.
    await until(lambda: _is_heard(stack, started.agent_id), what="a heartbeat after its registration")
    assert signal_agent(started.agent_id, signal.SIGSTOP)

    backup.restore()
    without_its_row = await stack.slots.get(started.agent_id)
    passed = await reclaim(stack.temporal, HOST)
    assert signal_agent(started.agent_id, signal.SIGCONT)
    await until(lambda: _is_heard(stack, started.agent_id), what="a heartbeat that counts")
    may_end.touch()
    outcome = await asyncio.wait_for(stack.hatchway.outcome(started), 60)

    assert without_its_row is None
    assert passed.restored == [started.agent_id]
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, JobResult.SUCCEEDED)
    await stack.nothing_left()


async def _is_heard(stack: Stack, agent_id: str) -> bool:
    """Again since its presence was written."""
    return bool(
        await stack.db.fetch_value(
            """
            select p.last_seen_at > s.adopted_at
              from scaler_agent_presence p join scaler_spawning_agents s using (agent_id)
             where p.agent_id = %(agent_id)s
            """,
            {"agent_id": agent_id},
        )
    )
