"""Config versions: all or nothing, in one history, with the caps that follow."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from hatchway.store.config_versions import Applied, Capacity, ConfigVersionConflict, ConfigVersions, digest
from hatchway.store.pool import Database
from hatchway.store.slots import Draining, Held, NeverFits, Slots, Waiting
from hatchway.store.waiters import Line
from tests.integration.store.factory import SCALER, candidate, held, reservation, set_caps


async def apply(db: Database, expected: int | None, *capacities: Capacity, content: str = "x") -> Applied:
    return await ConfigVersions(db).apply(
        {"content": content},
        source="hatchway.yaml",
        by="ann",
        note="more agents",
        expected_version=expected,
        capacities=capacities,
    )


async def test_each_apply_is_a_version_on_top_of_the_last(db: Database) -> None:
    applied = await apply(db, 1, Capacity.of_scaler(SCALER, 9), content="second")

    versions = ConfigVersions(db)
    current = await versions.current()
    assert applied.version == 2
    assert current is not None
    assert (current.version, current.parent, current.source, current.applied_by) == (2, 1, "hatchway.yaml", "ann")
    assert current.content == {"content": "second"}
    assert current.sha256 == digest({"content": "second"})
    assert await versions.get(2) == current
    assert await versions.get(3) is None
    assert [v.version for v in await versions.history()] == [2, 1]


async def test_an_apply_on_top_of_another_version_changes_nothing(db: Database) -> None:
    with pytest.raises(ConfigVersionConflict, match="at version 1, not 0"):
        await apply(db, 0, Capacity.of_scaler(SCALER, 0))

    assert len(await ConfigVersions(db).history()) == 1
    assert isinstance(await Slots(db).reserve(reservation("a1")), Held)


async def test_of_many_workers_that_bring_a_config_one_applies_it(db: Database) -> None:
    answers = await asyncio.gather(*(apply(db, 1) for _ in range(6)), return_exceptions=True)

    assert sorted(type(a).__name__ for a in answers) == ["Applied", *["ConfigVersionConflict"] * 5]


async def test_a_raised_cap_is_handed_to_the_line_and_a_lowered_one_evicts_nobody(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    await held(db, "a1")
    for agent in ("b1", "b2"):
        await Slots(db).reserve(reservation(agent))

    raised = await apply(db, None, Capacity.of_scaler(SCALER, 2))
    lowered = await apply(db, None, Capacity.of_scaler(SCALER, 1))

    assert [w.agent_id for w in raised.wake] == ["b1", "b2"]  # b1 has a slot, b2 is to be planned anew
    assert [w.agent_id for w in lowered.wake] == ["b2"]
    assert {r.agent_id for r in await Slots(db).list()} == {"a1", "b1"}
    assert [w.agent_id for w in await Line(db).list()] == ["b2"]


async def test_a_waiter_that_can_no_longer_fit_is_woken_and_told(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    await held(db, "a1")
    await Slots(db).reserve(reservation("b1"))

    applied = await apply(db, None, Capacity.of_scaler(SCALER, 0))

    assert [w.agent_id for w in applied.wake] == ["b1"]
    assert isinstance(await Slots(db).reserve(reservation("b1")), NeverFits)
    assert await Line(db).list() == []


async def test_a_parked_waiter_comes_back_to_its_old_place(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    await held(db, "a1")
    for agent in ("b1", "b2"):
        await Slots(db).reserve(reservation(agent))
    await apply(db, None, Capacity.of_scaler(SCALER, 0))

    applied = await apply(db, None, Capacity.of_scaler(SCALER, 2))

    assert {r.agent_id for r in await Slots(db).list()} == {"a1", "b1"}
    assert [w.agent_id for w in applied.wake] == ["b1", "b2"]


@pytest.mark.parametrize(("waiters", "told"), [(3, 3), (130, 100)])
async def test_an_apply_tells_its_waiters_in_bounded_batches_and_the_sweep_the_rest(
    db: Database, waiters: int, told: int
) -> None:
    await set_caps(db, {SCALER: 0, "other": 1})
    await held(db, "a1", scaler="other")
    agents = [f"b{number}" for number in range(waiters)]
    for agent in agents:
        await Slots(db).reserve(reservation(agent, candidates=[candidate("other")], config_version=2))

    applied = await apply(db, None, Capacity.of_scaler("other", 1))
    rest = await Line(db).outdated()
    again = await Line(db).outdated()
    next_applied = await apply(db, None, Capacity.of_scaler("other", 1))

    assert [w.agent_id for w in [*applied.wake, *rest]] == agents
    assert len(applied.wake) == told
    assert again == []
    assert [w.agent_id for w in next_applied.wake] == agents[:told]


async def test_a_waiter_that_is_planned_anew_keeps_its_place_and_its_deadline(db: Database) -> None:
    await set_caps(db, {SCALER: 1, "other": 0})
    await held(db, "a1")
    for agent in ("b1", "b2"):
        await Slots(db).reserve(reservation(agent, config_version=2))
    before = (await Line(db).list())[0]

    await set_caps(db, {SCALER: 1, "other": 1})
    await held(db, "a2", scaler="other")
    again = await Slots(db).reserve(reservation("b1", candidates=[candidate("other"), candidate()], config_version=3))
    after = (await Line(db).list())[0]

    assert isinstance(again, Waiting)
    assert again.position == 1
    assert (after.agent_id, after.scalers) == ("b1", ["other", SCALER])
    assert before.deadline_at is not None
    assert after.deadline_at is not None
    assert abs(after.deadline_at - before.deadline_at) < timedelta(seconds=30)


async def test_a_scaler_that_left_takes_no_new_work_and_keeps_what_runs(db: Database) -> None:
    await held(db, "a1")

    await apply(db, None, Capacity.of_scaler("other", 1))

    assert isinstance(await Slots(db).reserve(reservation("b1")), Draining)
    again = await Slots(db).reserve(reservation("a1"))
    assert isinstance(again, Held)
    await apply(db, None, Capacity.of_scaler(SCALER, 2))
    assert isinstance(await Slots(db).reserve(reservation("b1")), Held)


async def test_a_drain_outlives_an_apply_and_its_end_hands_room_over(db: Database) -> None:
    await Line(db).accept(SCALER, accepting=False)
    await set_caps(db, {SCALER: 2})
    waiting = await Slots(db).reserve(reservation("b1"))

    ended = await Line(db).accept(SCALER, accepting=True)

    assert isinstance(waiting, Waiting)
    assert waiting.bound == ["scaler:s1 is draining"]
    assert ended is not None
    assert [w.agent_id for w in ended.wake] == ["b1"]
    assert await Line(db).accept("nobody", accepting=True) is None


async def test_room_that_opens_by_time_is_handed_over_by_the_sweep(db: Database) -> None:
    await db.fetch_all("insert into scaler_failures (scaler_name, backoff_until) values ('s1', now() + interval '1 h')")
    waiting = await Slots(db).reserve(reservation("b1", candidates=[candidate()]))
    before = await Line(db).pump()
    await db.fetch_all("update scaler_failures set backoff_until = now() - interval '1 s'")

    after = await Line(db).pump()

    assert isinstance(waiting, Waiting)
    assert before == []
    assert [w.agent_id for w in after] == ["b1"]
