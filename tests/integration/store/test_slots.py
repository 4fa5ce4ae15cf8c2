"""What reserve answers, and what happens to a slot until it is released."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hatchway.store.adoption import Adoption
from hatchway.store.backoff import Backoff
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.slots import (
    AlreadyEnded,
    AtCapacity,
    BackingOff,
    BoundKind,
    Draining,
    Held,
    JobHasAgent,
    JobServed,
    NeverFits,
    Slots,
    Stamped,
    Waiting,
    Wake,
)
from hatchway.store.waiters import Line
from tests.integration.store.factory import SCALER, adopted, candidate, held, reservation, set_caps

MINUTE = timedelta(minutes=1)


async def test_a_held_slot_carries_all_that_teardown_and_adoption_need(db: Database) -> None:
    answer = await Slots(db).reserve(reservation("a1", job_id="job-1", reserved_for=7 * MINUTE))

    assert isinstance(answer, Held)
    assert not answer.resumed
    row = answer.row
    assert (row.scaler, row.state, row.backend_type, row.config_version) == (SCALER, "reserved", "container", 1)
    assert (row.label_set, row.mandatory_labels, row.roles) == (["linux", SCALER], ["gpu"], ["builder"])
    assert (row.job_id, row.bound_job_id, row.run_id) == ("job-1", "job-1", "run-of-job-1")
    assert (row.workflow_id, row.workflow_first_run_id) == ("provision/a1", "run-a1")
    assert row.host_id is None
    assert row.deadline_at == row.spawned_at + 7 * MINUTE


async def test_reserve_again_returns_slot_host_and_adoption(db: Database) -> None:
    slots = Slots(db)
    await held(db, "a1", "job-1")
    await slots.stamp_host("a1", "host-1")
    await Adoption(db).adopt("a1", "gateway-1", "reg-1")

    again = await slots.reserve(reservation("a1", job_id="job-1"))

    assert isinstance(again, Held)
    assert again.resumed
    assert (again.row.host_id, again.row.adopted_by, again.row.state) == ("host-1", "gateway-1", "active")
    assert len(await slots.list()) == 1


async def test_reserve_again_for_a_closing_row_says_so_in_the_row(db: Database) -> None:
    await held(db, "a1")
    await Adoption(db).close("a1", "cancelled", only_unadopted=False)

    again = await Slots(db).reserve(reservation("a1"))

    assert isinstance(again, Held)
    assert (again.resumed, again.row.closing, again.row.end_reason) == (True, True, "cancelled")


async def test_an_ended_agent_gets_no_second_slot(db: Database) -> None:
    await held(db, "a1")
    await Slots(db).release("a1", "idle")

    assert await Slots(db).reserve(reservation("a1")) == AlreadyEnded("idle")


async def test_a_release_fences_a_reserve_that_is_still_on_its_way(db: Database) -> None:
    released = await Slots(db).release("late", "cancelled")

    assert not released.existed
    assert await Slots(db).reserve(reservation("late")) == AlreadyEnded("cancelled")


async def test_a_job_with_a_live_agent_gets_no_second(db: Database) -> None:
    await adopted(db, "a1", "job-1")

    answer = await Slots(db).reserve(reservation("a2", job_id="job-1"))

    assert isinstance(answer, JobHasAgent)
    assert (answer.agent_id, answer.workflow_id, answer.first_run_id) == ("a1", "provision/a1", "run-a1")
    assert (answer.adopted, answer.closing) == (True, False)


async def test_a_job_that_waits_gets_no_second_place_in_the_line(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    await held(db, "a0")
    await Slots(db).reserve(reservation("a1", job_id="job-1"))

    answer = await Slots(db).reserve(reservation("a2", job_id="job-1"))

    assert isinstance(answer, JobHasAgent)
    assert (answer.agent_id, answer.row, answer.adopted) == ("a1", None, False)


async def test_a_closing_row_frees_its_job_while_it_still_holds_its_slot(db: Database) -> None:
    await held(db, "a1", "job-1")
    await Adoption(db).close("a1", "spawn-failed", only_unadopted=False)

    answer = await Slots(db).reserve(reservation("a2", job_id="job-1"))

    assert isinstance(answer, Held)
    assert [(r.agent_id, r.closing) for r in (answer.row, *answer.older)] == [("a2", False), ("a1", True)]


@pytest.mark.parametrize("released", [False, True], ids=["its row still stands", "its row is gone"])
async def test_a_served_job_is_not_served_again(db: Database, released: bool) -> None:
    await adopted(db, "a1", "job-1")
    await Outcomes(db).complete("a1", "reg-1", "failed", 3)
    if released:
        await Slots(db).release("a1", "completed", "failed")

    answer = await Slots(db).reserve(reservation("a2", job_id="job-1"))

    assert isinstance(answer, JobServed)
    outcome = answer.outcome
    assert (outcome.agent_id, outcome.result, outcome.end_reason, outcome.exit_code) == ("a1", "failed", "completed", 3)


@pytest.mark.parametrize("end_reason", ["spawn-failed", "compute-exited", "cancelled", "adoption-timeout"])
async def test_a_job_whose_agent_did_not_complete_may_be_offered_again(db: Database, end_reason: str) -> None:
    await adopted(db, "a1", "job-1")
    await Slots(db).release("a1", end_reason, "unknown")

    assert isinstance(await Slots(db).reserve(reservation("a2", job_id="job-1")), Held)


async def test_the_second_candidate_serves_when_the_first_is_full(db: Database) -> None:
    await set_caps(db, {"s1": 0, "s2": 1})

    answer = await Slots(db).reserve(reservation("a1", candidates=[candidate("s1"), candidate("s2")]))

    assert isinstance(answer, Held)
    assert answer.row.scaler == "s2"


async def test_a_refusal_names_the_narrowest_scope_that_bound_and_its_numbers(db: Database) -> None:
    await set_caps(db, {"s1": 2, "s2": 1}, 2)
    await held(db, "a1")
    await Slots(db).reserve(reservation("a2", candidates=[candidate("s2")]))

    answer = await Slots(db).reserve(reservation("a3", candidates=[candidate("s1"), candidate("s2")], wait=False))

    assert isinstance(answer, AtCapacity)
    assert answer.bound == [
        "global is full: 2 of 2 agents in use, 1 wanted",
        "scaler:s2 is full: 1 of 1 agents in use, 1 wanted",
    ]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_shape_that_no_empty_scope_holds_is_refused_at_once_and_never_waits(db: Database, wait: bool) -> None:
    await set_caps(db, {SCALER: 0})

    answer = await Slots(db).reserve(reservation("a1", wait=wait))

    assert isinstance(answer, NeverFits)
    assert answer.bound == ["scaler:s1 can never hold it: 1 agents wanted, the cap is 0"]
    assert await Line(db).list() == []


async def test_draining_and_backing_off_are_told_apart_from_at_capacity(db: Database) -> None:
    await set_caps(db, {"s1": 1, "s2": 1, "s3": 1})
    slots = Slots(db)
    row = await held(db, "a1")
    await Line(db).accept("s2", accepting=False)
    await Backoff(db).failed("s3", "x", began_at=row.read_at, code="disk_full", message="no space")

    async def refused(*scalers: str) -> object:
        wanted = reservation("b", candidates=[candidate(s) for s in scalers], wait=False)
        return await slots.reserve(wanted)

    draining, backing_off = await refused("s2"), await refused("s2", "s3")
    full = await refused("s1", "s2", "s3")

    assert isinstance(draining, Draining)
    assert isinstance(backing_off, BackingOff)
    assert backing_off.until is not None
    assert isinstance(full, AtCapacity)
    assert [b.kind for b in full.bounds] == [BoundKind.FULL, BoundKind.DRAINING, BoundKind.BACKING_OFF]


async def test_who_waits_is_told_what_for_and_how_many_are_ahead(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    await held(db, "a1")
    slots = Slots(db)
    await slots.reserve(reservation("b1"))

    answer = await slots.reserve(reservation("b2"))

    assert isinstance(answer, Waiting)
    assert (answer.position, answer.ahead) == (2, 1)
    assert answer.bound == ["scaler:s1 is full: 1 of 1 agents in use, 1 wanted"]
    assert [await slots.waiting(a) for a in ("b1", "b2", "a1")] == [1, 2, None]


async def test_a_release_hands_its_room_to_the_head_of_the_line_by_priority_then_arrival(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    slots = Slots(db)
    await held(db, "a1")
    for agent, priority in (("low", 5), ("first", 3), ("second", 3), ("urgent", 1)):
        await slots.reserve(reservation(agent, priority=priority))

    order = []
    holder = "a1"
    for _ in range(4):
        released = await slots.release(holder, "idle")
        (wake,) = released.wake
        holder = wake.agent_id
        order.append(holder)
        assert wake == Wake(f"provision/{holder}", f"run-{holder}", holder)
        assert isinstance(await slots.reserve(reservation(holder)), Held)

    assert order == ["urgent", "first", "second", "low"]


async def test_a_grant_is_taken_up_by_the_next_reserve_and_its_time_starts_then(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    slots = Slots(db)
    await held(db, "a1")
    await slots.reserve(reservation("b1", reserved_for=MINUTE))
    await slots.release("a1", "idle")
    granted = await slots.get("b1")
    await db.fetch_all("update scaler_spawning_agents set deadline_at = deadline_at - interval '50 s'")

    taken = await slots.reserve(reservation("b1", reserved_for=MINUTE))

    assert granted is not None
    assert granted.state == "granted"
    assert isinstance(taken, Held)
    assert (taken.resumed, taken.row.state) == (True, "reserved")
    assert taken.row.deadline_at == taken.row.read_at + MINUTE


async def test_a_newcomer_does_not_barge_past_a_head_that_does_not_fit(db: Database) -> None:
    await set_caps(db, {"s1": 5, "s2": 5}, 2)
    slots = Slots(db)
    await held(db, "a1")
    await held(db, "a2")
    await slots.reserve(reservation("head", candidates=[candidate("s1")]))

    answer = await slots.reserve(reservation("b", candidates=[candidate("s2")], wait=False))

    assert isinstance(answer, AtCapacity)


async def test_a_grant_whose_workflow_is_gone_is_returned_and_passed_on(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    slots = Slots(db)
    await held(db, "a1")
    for agent in ("gone", "next"):
        await slots.reserve(reservation(agent))
    await slots.release("a1", "idle")

    returned = await slots.returned("gone")

    assert returned.existed
    assert [w.agent_id for w in returned.wake] == ["next"]
    assert isinstance(await slots.reserve(reservation("gone")), AlreadyEnded)


async def test_a_grant_that_was_taken_up_is_not_returned(db: Database) -> None:
    await held(db, "a1")

    returned = await Slots(db).returned("a1")

    assert not returned.existed
    assert isinstance(await Slots(db).reserve(reservation("a1")), Held)


async def test_a_repeated_release_tells_again_whom_to_wake(db: Database) -> None:
    """The first reply may have been lost."""
    await set_caps(db, {SCALER: 1})
    slots = Slots(db)
    await held(db, "a1")
    await slots.reserve(reservation("b1"))
    first = await slots.release("a1", "idle")

    again = await slots.release("a1", "cancelled")

    assert (first.existed, again.existed) == (True, False)
    assert first.wake == again.wake
    assert again.end_reason == "idle"


async def test_a_repeated_reserve_tells_again_whom_to_wake(db: Database) -> None:
    """A reserve hands over too, where room has opened by time. The reply that named those it woke may be lost."""
    await set_caps(db, {SCALER: 2})
    slots = Slots(db)
    await held(db, "a1")
    await db.fetch_all("update scaler_capacity set accepting = false where scaler_name is not null")
    await slots.reserve(reservation("b1"))
    await db.fetch_all("update scaler_capacity set accepting = true where scaler_name is not null")

    first = await slots.reserve(reservation("b2"))
    again = await slots.reserve(reservation("b2"))

    assert [w.agent_id for w in first.wake] == ["b1"]
    assert again.wake == first.wake


async def test_a_repeated_reserve_that_was_held_tells_again_whom_to_wake(db: Database) -> None:
    await set_caps(db, {SCALER: 2})
    slots = Slots(db)
    await db.fetch_all("update scaler_capacity set accepting = false where scaler_name is not null")
    await slots.reserve(reservation("b1"))
    await db.fetch_all("update scaler_capacity set accepting = true where scaler_name is not null")

    first = await slots.reserve(reservation("b2"))
    again = await slots.reserve(reservation("b2"))

    assert isinstance(again, Held)
    assert [w.agent_id for w in first.wake] == ["b1"]
    assert again.wake == first.wake


async def test_a_last_look_that_leaves_the_line_makes_way_for_those_behind(db: Database) -> None:
    """A head that does not fit holds its scope. When it gives up, who fits must not wait for the next release."""
    slots = Slots(db)
    await db.fetch_all("update scaler_capacity set max_mcpu = 4000 where scope = %(s)s", {"s": f"scaler:{SCALER}"})
    await slots.reserve(reservation("a1", candidates=[candidate(mcpu=2000)]))
    big = reservation("big", candidates=[candidate(mcpu=3000)])
    await slots.reserve(big)
    assert isinstance(await slots.reserve(reservation("small", candidates=[candidate(mcpu=1000)])), Waiting)

    gives_up = await slots.reserve(replace(big, wait=False))

    assert isinstance(gives_up, AtCapacity)
    assert [w.agent_id for w in gives_up.wake] == ["small"]


async def test_who_leaves_the_line_no_longer_waits(db: Database) -> None:
    await set_caps(db, {SCALER: 1})
    slots = Slots(db)
    await held(db, "a1")
    await slots.reserve(reservation("b1"))

    await slots.release("b1", "declined")

    assert await slots.waiting("b1") is None
    assert (await slots.release("a1", "idle")).wake == []


async def test_a_new_plan_keeps_the_place_in_the_line(db: Database) -> None:
    await set_caps(db, {"s1": 1, "s2": 1})
    slots = Slots(db)
    await held(db, "a1")
    await slots.reserve(reservation("x", candidates=[candidate("s2")]))
    await slots.reserve(reservation("b1"))
    await slots.reserve(reservation("b2"))

    await slots.reserve(reservation("b1", candidates=[candidate("s1"), candidate("s2")], config_version=2))

    assert [(w.agent_id, w.scalers) for w in await Line(db).list()] == [("b1", ["s1", "s2"]), ("b2", ["s1"])]


async def test_a_stamp_says_whether_an_earlier_attempt_may_have_had_its_effect(db: Database) -> None:
    slots = Slots(db)
    await held(db, "a1")

    answers = [await slots.stamp_host("a1", "host-1") for _ in range(3)]

    assert [one.again for one in answers if isinstance(one, Stamped)] == [False, True, True]


async def test_the_list_shows_live_rows_with_their_age(db: Database) -> None:
    await set_caps(db, {"s1": 3, "s2": 3})
    await held(db, "a1")
    await Slots(db).reserve(reservation("a2", candidates=[candidate("s2")]))
    await db.fetch_all("update scaler_spawning_agents set spawned_at = now() - interval '90 s' where agent_id = 'a1'")

    rows = await Slots(db).list()

    assert [r.agent_id for r in rows] == ["a1", "a2"]
    assert timedelta(seconds=90) <= rows[0].age < timedelta(seconds=120)
    assert [r.agent_id for r in await Slots(db).list("s2")] == ["a2"]
