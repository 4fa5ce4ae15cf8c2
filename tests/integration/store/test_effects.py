"""Steps of a spawn on its row: which host and engine make the effect, and its confirmation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hatchway.store.adoption import Adoption
from hatchway.store.pool import Database
from hatchway.store.slots import (
    BoundToHost,
    Closing,
    NoRow,
    Slots,
    Stamped,
)
from tests.integration.store.factory import adopted, held

MINUTE = timedelta(minutes=1)


async def test_one_host_makes_the_effect(db: Database) -> None:
    slots = Slots(db)
    await held(db, "a1")

    stamped = await slots.stamp_host("a1", "host-1", attempt_deadline=MINUTE)

    assert isinstance(stamped, Stamped)
    assert stamped.row.deadline_at == stamped.row.read_at + MINUTE
    assert isinstance(await slots.stamp_host("a1", "host-1"), Stamped)
    assert await slots.stamp_host("a1", "host-2") == BoundToHost("host-1")
    assert [r.agent_id for r in await slots.by_host("host-1")] == ["a1"]
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)
    assert await slots.stamp_host("a1", "host-1") == Closing("cancelled")
    assert await slots.stamp_host("nobody", "host-1") == NoRow()


async def test_the_engine_that_was_named_first_stays(db: Database) -> None:
    slots = Slots(db)
    await held(db, "a1")
    await slots.stamp_host("a1", "host-1")

    assert await slots.stamp_engine("a1", "engine-1") == "engine-1"
    assert await slots.stamp_engine("a1", "engine-2") == "engine-1"
    row = await slots.get("a1")
    assert row is not None
    assert row.teardown_facts is not None
    assert (row.engine, row.teardown_facts.engine) == ("engine-1", "engine-1")
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)
    assert await slots.stamp_engine("a1", "engine-1") is None
    assert await slots.stamp_engine("nobody", "engine-1") is None


async def test_the_adoption_deadline_runs_from_the_confirmed_spawn(db: Database) -> None:
    await held(db, "a1")

    row = await Slots(db).confirm_spawned("a1", {"ref": "c0ffee"}, 5 * MINUTE)

    assert row is not None
    assert (row.state, row.compute) == ("spawned", {"ref": "c0ffee"})
    assert row.deadline_at == row.read_at + 5 * MINUTE


async def test_an_adoption_before_the_spawn_call_returned_stays(db: Database) -> None:
    await adopted(db, "a1")

    row = await Slots(db).confirm_spawned("a1", {"ref": "c0ffee"}, 5 * MINUTE)

    assert row is not None
    assert (row.state, row.deadline_at, row.compute) == ("active", None, {"ref": "c0ffee"})


@pytest.mark.parametrize("released", [False, True])
async def test_a_spawn_is_not_confirmed_for_a_row_that_closes_or_is_gone(db: Database, released: bool) -> None:
    await held(db, "a1")
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)
    if released:
        await Slots(db).release("a1", "cancelled")

    assert await Slots(db).confirm_spawned("a1", {}, MINUTE) is None
    assert await Slots(db).request_drain("a1") is False
