"""Times that Postgres knows and nobody can reckon by: one such row is spared and named, and hides no other one."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from hatchway.model import EndReason, ProvisionState
from hatchway.reaping import Windows, judge
from hatchway.store.audit import Audit
from hatchway.store.pool import Database
from hatchway.store.reaping import Reaping
from hatchway.store.slots import Slots
from tests.integration.cli.conftest import Hatchway
from tests.integration.reap.facts import aged, gateway, silent
from tests.integration.store.factory import SCALER, adopted, held, set_caps
from tests.support.lab import Lab

W = Windows()
TIMES = ["infinity", "-infinity", "20000-01-01", "0044-03-15 BC"]
COLUMNS = {
    "spawned_at": "update scaler_spawning_agents set spawned_at = %(time)s where agent_id = 'odd'",
    "adopted_at": "update scaler_spawning_agents set adopted_at = %(time)s where agent_id = 'odd'",
    "deadline_at": "update scaler_spawning_agents set deadline_at = %(time)s where agent_id = 'odd'",
    "closing_at": "update scaler_spawning_agents set state = 'closing', closing_at = %(time)s where agent_id = 'odd'",
    "last_seen_at": "update scaler_agent_presence set last_seen_at = %(time)s where agent_id = 'odd'",
}
GATEWAY_COLUMNS = {
    "last_seen_at": "update scaler_instances set last_seen_at = %(time)s where instance_id = 'odd-gateway'",
    "alive_since": "update scaler_instances set alive_since = %(time)s where instance_id = 'odd-gateway'",
}


@pytest.fixture
async def fleet(db: Database) -> Database:
    """Three that have been silent for an hour, with a gateway that was there to hear them. `odd` is in the middle."""
    await set_caps(db, {SCALER: None})
    await gateway(db)
    for agent in ("a-first", "odd", "z-last"):
        await adopted(db, agent, f"job-of-{agent}")
        await aged(db, "spawned_at", 7200, agent)
    await silent(db, 3600)
    return db


async def _condemned(db: Database) -> set[str]:
    """Whom a pass would condemn that cannot ask Temporal."""
    return {
        found.candidate.agent_id
        async for page in Reaping(db).pages(W)
        for found in page.found
        if judge(found.candidate, W, page.now).end is EndReason.HEARTBEAT_TIMEOUT
    }


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("column", COLUMNS)
async def test_a_row_that_cannot_be_read_is_spared_and_its_neighbours_are_judged(
    fleet: Database, column: str, time: str
) -> None:
    await fleet.fetch_all(COLUMNS[column], {"time": time})

    condemned, rows = await _condemned(fleet), await Slots(fleet).list()

    assert condemned == {"a-first", "z-last"}
    assert {row.agent_id for row in rows} == {"a-first", "odd", "z-last"}


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
@pytest.mark.parametrize("column", GATEWAY_COLUMNS)
async def test_a_gateway_whose_times_cannot_be_read_is_no_witness(fleet: Database, column: str, time: str) -> None:
    """One alone makes the reaper blind; beside another one it changes nothing."""
    await gateway(fleet, "odd-gateway")
    await fleet.fetch_all(GATEWAY_COLUMNS[column], {"time": time})
    beside_another = await _condemned(fleet)
    await fleet.fetch_all("delete from scaler_instances where instance_id <> 'odd-gateway'")

    alone, sight = await _condemned(fleet), await Reaping(fleet).sight(W)

    assert beside_another == {"a-first", "odd", "z-last"}
    assert alone == set()
    assert (sight.blocked, sight.unseen, sight.gateway_since) == (True, 3, None)


async def test_doctor_names_each_of_them_and_the_sweep_goes_on(lab: Lab, database_url: str) -> None:
    await gateway(lab.db)
    odd, other = await lab.provision(job_id="job-1"), await lab.provision(job_id="job-2")
    for started in (odd, other):
        await lab.reaches(started, ProvisionState.AWAITING_ADOPTION)
        await lab.adopt(started)
    await silent(lab.db, 7200)
    for statement in (COLUMNS["deadline_at"], COLUMNS["last_seen_at"]):
        await lab.db.fetch_all(statement.replace("'odd'", "%(agent)s"), {"time": "infinity", "agent": odd.agent_id})
    await gateway(lab.db, "odd-gateway")
    await lab.db.fetch_all(GATEWAY_COLUMNS["alive_since"], {"time": "-infinity"})
    hatchway = Hatchway(
        {
            "DATABASE_URL": database_url,
            "TEMPORAL_ADDRESS": lab.temporal.service_client.config.target_host,
            "TEMPORAL_NAMESPACE": lab.temporal.namespace,
        }
    )

    swept = await lab.sweep()
    done = await asyncio.to_thread(hatchway, "doctor", "--json")
    dry = await asyncio.to_thread(hatchway, "reap", "--dry-run", "--json")

    assert (done.returncode, dry.returncode) == (1, 0), done.stderr + dry.stderr
    found = {f["where"]: f["what"] for f in json.loads(done.stdout)["findings"] if f["check"] == "reaper"}
    assert swept.steps["reap"].done["condemned"] == 1
    assert [(row.agent_id, row.closing) for row in await lab.slots.list() if row.agent_id == odd.agent_id] == [
        (odd.agent_id, False)
    ]
    assert set(found) == {
        f"scaler_spawning_agents, {odd.agent_id}", f"scaler_agent_presence, {odd.agent_id}",
        "scaler_instances, odd-gateway",
    }  # fmt: skip
    assert "deadline_at" in found[f"scaler_spawning_agents, {odd.agent_id}"]


async def test_an_overdue_agent_beside_one_without_an_end_is_still_told_of(fleet: Database) -> None:
    """What `doctor` says of the stuck ones does not break off at an infinite deadline."""
    await held(fleet, "never")
    await fleet.fetch_all("update scaler_spawning_agents set deadline_at = '-infinity' where agent_id = 'never'")
    await aged(fleet, "deadline_at", 3600, "z-last")

    stuck = await Audit(fleet).stuck(timedelta(minutes=5), timedelta(minutes=5))

    assert [one.agent_id for one in stuck] == ["z-last"]
