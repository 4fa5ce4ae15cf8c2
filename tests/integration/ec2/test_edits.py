"""Another region, or another endpoint, under a scaler's name: what the old one has made is not lost sight of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hatchway.backends.base import Gone
from hatchway.backends.ec2 import Ec2Backend
from hatchway.config.plan import carry_out, plan
from hatchway.config.schema import Config, Scaler
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.model import ScaleDownReason, TeardownFacts
from hatchway.store.config_versions import ConfigVersions, ScalerTypeInUse
from hatchway.store.pool import Database
from hatchway.store.slots import Candidate, Held, Reservation, Slots
from tests.contract.backend import fresh_agent_id, silent, spec_for
from tests.support.fake_ec2.cloud import FakeEc2
from tests.support.fake_ec2.contract import INSTALLATION, Ec2Harness
from tests.support.fake_ec2.specs import QUICK, SCALER, ec2_scaler

HERE = "https://ec2.here.example"
EDITS: dict[str, dict[str, Any]] = {
    "another region": {"region": "us-east-1", "endpointUrl": HERE},
    "another endpoint": {"region": "eu-central-1", "endpointUrl": "https://ec2.there.example"},
    "the region's own endpoint": {"region": "eu-central-1"},
}


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url) as db:
        yield db


async def put(db: Database, *scalers: dict[str, Any]) -> int:
    """The version that is then in force."""
    versions = ConfigVersions(db)
    planned = await plan(versions, Config.model_validate({"version": 1, "scalers": list(scalers)}))
    return (await carry_out(versions, planned, source="test", by="test", note=None)).version


async def hold(db: Database, agent_id: str, version: int) -> None:
    candidate = Candidate(
        scaler=SCALER, mcpu=0, mem_bytes=0, label_set=["linux"], mandatory_labels=[], backend_type="ec2",
        provisioning_targets=[], roles=[],
    )  # fmt: skip
    answer = await Slots(db).reserve(
        Reservation(
            agent_id=agent_id, workflow_id=f"provision/{agent_id}", workflow_first_run_id="run", job_id=None,
            run_id=None, priority=3, wait=False, candidates=[candidate], config_version=version, owner_instance_id="w",
            reserved_for=timedelta(hours=1), wait_timeout=timedelta(hours=1),
        )
    )  # fmt: skip
    assert isinstance(answer, Held)


@pytest.mark.scenario("S01", "S04")
@pytest.mark.parametrize("through", ["at once", "after it was taken out"])
@pytest.mark.parametrize("edit", EDITS)
async def test_a_scaler_moves_only_once_its_instances_have_ended(db: Database, edit: str, through: str) -> None:
    other = ec2_scaler(HERE) | {"name": "other"}
    moved = ec2_scaler(HERE) | {"ec2": EDITS[edit]}
    version = await put(db, other, ec2_scaler(HERE))
    await hold(db, "a1", version)
    await put(db, other, ec2_scaler(HERE, maxAgents=7))  # what stays where it is may change
    if through == "after it was taken out":
        await put(db, other)

    with pytest.raises(ScalerTypeInUse, match=r"aws cannot change from ec2 in eu-central-1.* while it has 1 agent"):
        await put(db, other, moved)
    await Slots(db).release("a1", "completed", None)

    assert await put(db, other, moved) == version + (2 if through == "at once" else 3)


@pytest.mark.parametrize("edit", EDITS)
async def test_a_worker_asks_no_other_place_than_the_one_that_it_has_reached(
    harness: Ec2Harness, cloud: FakeEc2, edit: str
) -> None:
    """What it stamps on rows is that one: an instance elsewhere would be looked for where it is not."""
    moved = replace(
        spec_for(harness, fresh_agent_id()), scaler=Scaler.model_validate(ec2_scaler(HERE) | {"ec2": EDITS[edit]})
    )

    with pytest.raises(PermanentSpawnError, match="restart the worker") as refused:
        await harness.backend.spawn(moved, silent)

    assert refused.value.code is SpawnCode.INVALID_SPEC
    assert cloud.of(moved.agent_id) == []


@pytest.mark.scenario("S01", "S04")
@pytest.mark.parametrize("region", ["eu-central-1", "us-east-1"])
async def test_an_instance_that_nobody_confirmed_is_looked_for_where_it_was_asked_for(
    harness: Ec2Harness, cloud: FakeEc2, region: str
) -> None:
    """By a worker that was started after the edit: all that is known is what the row was stamped with before."""
    agent_id = fresh_agent_id()
    asked = await harness.backend.engine_id()
    await harness.backend.spawn(spec_for(harness, agent_id), silent)
    edited = ec2_scaler("http://127.0.0.1:1") | {"ec2": {"region": region, "endpointUrl": "http://127.0.0.1:1"}}
    elsewhere = Ec2Backend(Scaler.model_validate(edited), INSTALLATION, QUICK)
    stamped = TeardownFacts(backend_type="ec2", host_id=elsewhere.host_id, engine=asked)

    gone = await elsewhere.destroy(agent_id, stamped, ScaleDownReason.SHUTDOWN)
    await elsewhere.close()

    assert gone == Gone()
    assert cloud.of(agent_id)[0].state == "terminated"
