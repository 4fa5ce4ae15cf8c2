"""Completions are committed once and never lost; an outcome is decided once."""

from __future__ import annotations

import pytest

from hatchway.store.adoption import Adoption
from hatchway.store.outcomes import Completed, CompletionRefused, Outcomes, Refusal
from hatchway.store.pool import Database
from hatchway.store.slots import Slots
from tests.integration.store.factory import adopted, held


async def test_the_first_completion_stays(db: Database) -> None:
    await adopted(db, "a1", "job-1")
    outcomes = Outcomes(db)

    first = await outcomes.complete("a1", "reg-1", "failed", 2)
    again = await outcomes.complete("a1", "reg-1", "succeeded", 0)

    for answer in (first, again):
        assert isinstance(answer, Completed)
        assert (answer.workflow_id, answer.first_run_id) == ("provision/a1", "run-a1")
        assert (answer.result, answer.exit_code, answer.closing) == ("failed", 2, False)
    assert await outcomes.completion("a1") == ("failed", 2)


async def test_a_completion_that_races_with_the_teardown_decides_the_outcome(db: Database) -> None:
    await adopted(db, "a1", "job-1")
    await Adoption(db).close("a1", "compute-exited", only_unadopted=False)

    completed = await Outcomes(db).complete("a1", "reg-1", "succeeded", 0)
    released = await Slots(db).release("a1", "compute-exited", "unknown")

    assert isinstance(completed, Completed)
    assert completed.closing
    assert (released.end_reason, released.result) == ("completed", "succeeded")


@pytest.mark.parametrize("registration", ["reg-2", "reg-1"], ids=["adopted by another", "not adopted at all"])
async def test_only_the_adopted_registration_completes(db: Database, registration: str) -> None:
    if registration == "reg-2":
        await adopted(db, "a1", "job-1")
    else:
        await held(db, "a1", "job-1")

    answer = await Outcomes(db).complete("a1", registration, "succeeded", 0)

    assert answer is CompletionRefused.OTHER_REGISTRATION
    assert await Outcomes(db).completion("a1") is None


async def test_a_completion_after_the_release_is_refused(db: Database) -> None:
    await adopted(db, "a1", "job-1")
    await Slots(db).release("a1", "cancelled")

    assert await Outcomes(db).complete("a1", "reg-1", "succeeded", 0) is CompletionRefused.GONE


async def test_an_outcome_is_decided_once_and_release_keeps_it(db: Database) -> None:
    await adopted(db, "a1", "job-1")
    outcomes = Outcomes(db)

    first = await outcomes.decide("a1", "compute-exited", "unknown")
    second = await outcomes.decide("a1", "cancelled", "cancelled")
    await Slots(db).release("a1", "operator", None)

    kept = await outcomes.get("a1")
    assert kept is not None
    for row in (first, second, kept):
        assert (row.end_reason, row.result, row.decided_at) == ("compute-exited", "unknown", first.decided_at)
    assert kept.closed_at is not None
    assert kept.adopted_by == "gateway-1"
    assert await outcomes.by_job("job-1") == [kept]


async def test_the_release_alone_decides_and_closes(db: Database) -> None:
    await held(db, "a1", "job-1")

    await Slots(db).release("a1", "spawn-failed", None)

    outcome = await Outcomes(db).get("a1")
    assert outcome is not None
    assert (outcome.job_id, outcome.scaler, outcome.end_reason, outcome.result) == ("job-1", "s1", "spawn-failed", None)
    assert outcome.decided_at is not None
    assert outcome.closed_at is not None


async def test_an_agent_is_told_why_it_is_turned_away(db: Database) -> None:
    await adopted(db, "a1")
    outcomes = Outcomes(db)
    fine = await outcomes.refusal("a1")
    await Adoption(db).close("a1", "max-lifetime", only_unadopted=False)
    closing = await outcomes.refusal("a1")
    await Slots(db).release("a1", "max-lifetime")

    assert fine is None
    assert closing == Refusal("tearing-down", "max-lifetime")
    assert await outcomes.refusal("a1") == Refusal("ended", "max-lifetime")
    assert await outcomes.refusal("nobody") is None
