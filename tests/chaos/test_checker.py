"""The checker's judgement on logs that were written by hand: what it lets pass, and what it finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.chaos.checker import Ended, Evidence, Kind, judge
from tests.support.chaos.journal import Event
from tests.support.chaos.rows import RowChange

A, B, THEIRS = "scaler-a", "scaler-b", "scaler-theirs"


def row(
    at: int, what: str, agent_id: str = A, state: str = "reserved", *, job: str = "job", by: str | None = None
) -> RowChange:
    return RowChange(at, what, agent_id, job, "cloud", state, by, None)


def fine() -> Evidence:
    """One agent that lived and died as it should, beside a machine of somebody else."""
    return Evidence(
        events=[
            Event(1, "foreign", THEIRS), Event(11, "created", A), Event(21, "began", A, "job"),
            Event(30, "finished", A, "job"), Event(41, "removed", A),
        ],
        rows=[
            row(10, "insert"), row(12, "update", state="spawned"), row(20, "update", state="active", by="gateway-1"),
            row(40, "update", state="closing", by="gateway-1"), row(42, "delete", state="closing", by="gateway-1"),
        ],
        caps={"cloud": 1, "global": 1},
        ends=[Ended("job", A, "completed")],
        foreign_left={THEIRS},
    )  # fmt: skip


def without(evidence: Evidence, what: str) -> None:
    evidence.events = [event for event in evidence.events if event.what != what]


def two_at_once(evidence: Evidence) -> None:
    evidence.rows.insert(1, row(10, "insert", B, job="other"))
    evidence.events.insert(2, Event(12, "created", B))
    evidence.rows.append(row(50, "delete", B, job="other"))
    evidence.events.append(Event(49, "removed", B))


def created_before_its_row(evidence: Evidence) -> None:
    evidence.rows[0] = row(15, "insert")


def released_before_gone(evidence: Evidence) -> None:
    evidence.rows[-1] = row(40, "delete")


def never_removed(evidence: Evidence) -> None:
    without(evidence, "removed")
    evidence.left_compute = [A]


def never_released(evidence: Evidence) -> None:
    evidence.rows.pop()
    evidence.left_rows = [A]


def foreign_gone(evidence: Evidence) -> None:
    evidence.foreign_left = set()


def adopted_twice(evidence: Evidence) -> None:
    evidence.caps = {}
    evidence.rows.insert(3, row(21, "update", B, "active", by="gateway-2"))


def done_twice(evidence: Evidence) -> None:
    evidence.events.append(Event(50, "finished", B, "job"))


def told_at_work(evidence: Evidence) -> None:
    evidence.events[3] = Event(30, "told", A, "job")


def destroyed_at_work(evidence: Evidence) -> None:
    without(evidence, "finished")


def vanished_at_work(evidence: Evidence) -> None:
    without(evidence, "finished")
    without(evidence, "removed")


def a_secret_in_a_log(evidence: Evidence) -> None:
    evidence.secrets = ["logs/worker-1.log"]


def waited_for_ever(evidence: Evidence) -> None:
    evidence.ends = [Ended("job", A, None)]


def said_to_be_lost(evidence: Evidence) -> None:
    evidence.ends = [Ended("job", A, "AgentLost")]


def ended_by_a_bug(evidence: Evidence) -> None:
    evidence.ends = [Ended("job", A, "RuntimeError")]


WRONG: list[tuple[Callable[[Evidence], None], Kind]] = [
    (two_at_once, Kind.CAP), (created_before_its_row, Kind.ORDER), (released_before_gone, Kind.ORDER),
    (never_removed, Kind.LEAK), (never_released, Kind.GHOST), (foreign_gone, Kind.FOREIGN), (adopted_twice, Kind.TWICE),
    (done_twice, Kind.TWICE), (told_at_work, Kind.BUSY), (destroyed_at_work, Kind.BUSY), (vanished_at_work, Kind.BUSY),
    (a_secret_in_a_log, Kind.SECRET), (waited_for_ever, Kind.ENDLESS), (said_to_be_lost, Kind.UNTRUE),
    (ended_by_a_bug, Kind.UNTRUE),
]  # fmt: skip


def test_a_life_as_it_should_be_breaks_nothing() -> None:
    assert judge(fine()) == []


@pytest.mark.parametrize(("goes_wrong", "kind"), WRONG, ids=[wrong.__name__ for wrong, _ in WRONG])
def test_each_wrong_is_found_as_what_it_is(goes_wrong: Callable[[Evidence], None], kind: Kind) -> None:
    evidence = fine()
    goes_wrong(evidence)

    assert {violation.kind for violation in judge(evidence)} == {kind}


def test_every_kind_of_violation_is_tried() -> None:
    assert {kind for _, kind in WRONG} == set(Kind)


def test_an_agent_may_be_ended_when_that_was_asked_for_before() -> None:
    evidence = fine()
    told_at_work(evidence)
    evidence.events.insert(3, Event(25, "excused", A, "cancelled"))
    evidence.ends = [Ended("job", A, "Cancelled")]

    assert judge(evidence) == []


def test_an_excuse_that_comes_afterwards_is_none() -> None:
    evidence = fine()
    told_at_work(evidence)
    evidence.events.append(Event(60, "excused", A, "cancelled"))

    assert {violation.kind for violation in judge(evidence)} == {Kind.BUSY}


def test_a_terminated_workflow_is_no_reason_to_end_its_busy_agent() -> None:
    evidence = fine()
    evidence.events.insert(3, Event(25, "orphaned", A, "terminated"))
    evidence.ends = [Ended("job", A, "Terminated")]
    assert judge(evidence) == []

    told_at_work(evidence)
    evidence.events[3:5] = [Event(25, "orphaned", A), Event(30, "told", A, "job")]

    assert {violation.kind for violation in judge(evidence)} == {Kind.BUSY}


def test_a_machine_that_comes_late_and_is_reclaimed_breaks_nothing() -> None:
    evidence = fine()
    evidence.events += [Event(50, "late", A), Event(60, "removed", A)]

    assert judge(evidence) == []
