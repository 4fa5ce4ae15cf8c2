"""The reaper's table, every cell of it, and what holds whatever the facts are."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hatchway.config.schema import Reaper
from hatchway.model import EndReason
from hatchway.reaping import (
    Action,
    Candidate,
    Rule,
    Way,
    Windows,
    Workflow,
    depends_on_workflow,
    judge,
    silence_needed,
    verdict,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
W = Windows()
LOST, NEVER_CAME = EndReason.HEARTBEAT_TIMEOUT, EndReason.ADOPTION_TIMEOUT
OPEN, GONE = Workflow(open=True), Workflow(open=False, closed_at=NOW - timedelta(hours=1))


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def registered(absent: float, **facts: object) -> Candidate:
    """A busy agent that was last heard of so many seconds ago, with a gateway that has been there for long, and that
    agents which came the same way are heard of at.
    """
    return Candidate(
        **{
            "agent_id": "a1", "spawned_at": ago(7200), "workflow_id": "w1", "first_run_id": "r1", "owner": "worker-1",
            "adopted_by": "gateway-1", "adopted_at": ago(7100), "last_seen_at": ago(absent),
            "gateway_seen_at": ago(5), "gateway_since": ago(7000), "reached_since": ago(7000), "workflow": OPEN,
            **facts,
        }  # type: ignore[arg-type]
    )  # fmt: skip


def unregistered(**facts: object) -> Candidate:
    return Candidate(
        **{
            "agent_id": "a1", "spawned_at": ago(200), "workflow_id": "w1", "first_run_id": "r1", "owner": "worker-1",
            "deadline_at": ago(-100), "workflow": OPEN, **facts,
        }  # type: ignore[arg-type]
    )  # fmt: skip


def closing(seconds: float = 5, **facts: object) -> Candidate:
    return registered(
        10, **{"closing_at": ago(seconds), "end_reason": EndReason.MAX_LIFETIME, "teardown_open": False, **facts}
    )


CELLS: dict[str, tuple[Candidate, Rule, EndReason | None]] = {
    # closing
    "closing, its workflow open": (closing(), Rule.ATTENDED, None),
    "closing, its workflow gone": (closing(workflow=GONE), Rule.UNATTENDED, EndReason.MAX_LIFETIME),
    "closing, its teardown's workflow open": (closing(workflow=GONE, teardown_open=True), Rule.ATTENDED, None),
    "closing, Temporal silent": (closing(workflow=None, teardown_open=None), Rule.ATTENDED, None),
    "closing, for less than the re-attempt": (closing(599), Rule.ATTENDED, None),
    "closing, for the re-attempt": (closing(600), Rule.OVERTIME, EndReason.MAX_LIFETIME),
    "closing for the re-attempt, its workflow's round under way": (
        closing(600, workflow=Workflow(open=True, acting=True)), Rule.ATTENDED, None),
    "closing for long, its teardown open": (closing(9999, teardown_open=True), Rule.ATTENDED, None),
    "closing, condemned, and its workflow stands": (
        closing(condemned=True, end_reason=LOST), Rule.UNHEARD, LOST),
    "closing, condemned, and its workflow tears down": (
        closing(condemned=True, workflow=Workflow(open=True, tearing_down=True)), Rule.ATTENDED, None),
    "closing without a reason, registered": (closing(workflow=GONE, end_reason=None), Rule.UNATTENDED, LOST),
    "closing without a reason, never registered": (
        unregistered(closing_at=ago(5), teardown_open=False, workflow=GONE), Rule.UNATTENDED, NEVER_CAME),
    "closing, owner unknown": (
        Candidate("a1", ago(9999), closing_at=ago(5), teardown_open=False, workflow=GONE), Rule.UNATTENDED, NEVER_CAME),
    # seen
    "seen, its workflow gone": (registered(90, workflow=GONE), Rule.SEEN, None),
    "seen just before the timeout": (registered(89.9, gateway_seen_at=None), Rule.SEEN, None),
    "registered just now, no heartbeat yet": (
        registered(0, last_seen_at=None, adopted_at=ago(30), workflow=GONE), Rule.SEEN, None),
    # unknown
    "nobody known": (Candidate("a1", ago(999_999), workflow=GONE), Rule.UNKNOWN, None),
    "nobody known, far past its deadline": (Candidate("a1", ago(9999), deadline_at=ago(9000)), Rule.UNKNOWN, None),
    "the owner known": (Candidate("a1", ago(9999), owner="w", workflow=GONE), Rule.ABANDONED, NEVER_CAME),
    # blind
    "blind: no gateway": (registered(9999, gateway_since=None, workflow=GONE), Rule.BLIND, None),
    "blind: a gateway that is new": (registered(9999, gateway_since=ago(119), workflow=GONE), Rule.BLIND, None),
    "a gateway for the flap grace": (registered(9999, gateway_since=ago(120), workflow=GONE), Rule.LEFT, LOST),
    # registered
    "silent for less than the grace, its workflow gone": (registered(119, workflow=GONE), Rule.SPARED, None),
    "silent for the grace, its workflow gone": (registered(120, workflow=GONE), Rule.LEFT, LOST),
    "silent for the grace, Temporal silent": (registered(120, workflow=None), Rule.SPARED, None),
    "silent for the grace, its workflow open": (registered(120), Rule.SPARED, None),
    "silent for the grace, its gateway too": (registered(120, gateway_seen_at=ago(120)), Rule.DESERTED, LOST),
    "silent for the grace, its gateway forgotten": (registered(120, gateway_seen_at=None), Rule.DESERTED, LOST),
    "silent for the grace, its gateway for less": (registered(120, gateway_seen_at=ago(119)), Rule.SPARED, None),
    "silent for less than the grace, its gateway gone": (registered(119, gateway_seen_at=None), Rule.SPARED, None),
    "silent, its gateway gone, and no way known to another": (
        registered(1799, gateway_seen_at=None, reached_since=None), Rule.NOWHERE, None),
    "silent, its gateway gone, and another reached for less than the grace": (
        registered(1799, gateway_seen_at=None, reached_since=ago(119)), Rule.NOWHERE, None),
    "silent, its gateway gone, and another reached for the grace": (
        registered(120, gateway_seen_at=None, reached_since=ago(120)), Rule.DESERTED, LOST),
    "stranded, its gateway gone, and no way known to another": (
        registered(1800, gateway_seen_at=None, reached_since=None), Rule.STRANDED, LOST),
    "no way known to another, its workflow gone": (
        registered(120, gateway_seen_at=None, reached_since=None, workflow=GONE), Rule.LEFT, LOST),
    "no way known to another, Temporal silent": (
        registered(120, gateway_seen_at=None, reached_since=None, workflow=None), Rule.NOWHERE, None),
    "silent just before the stranded timeout": (registered(1799), Rule.SPARED, None),
    "silent for the stranded timeout": (registered(1800), Rule.STRANDED, LOST),
    # not registered
    "on its way": (unregistered(), Rule.SPARED, None),
    "its workflow gone for less than the grace": (
        unregistered(workflow=Workflow(open=False, closed_at=ago(119))), Rule.SPARED, None),
    "its workflow gone for the grace": (
        unregistered(workflow=Workflow(open=False, closed_at=ago(120))), Rule.ABANDONED, NEVER_CAME),
    "its workflow forgotten, before its deadline": (unregistered(workflow=Workflow(open=False)), Rule.SPARED, None),
    "its workflow forgotten, after its deadline": (
        unregistered(workflow=Workflow(open=False), deadline_at=ago(120)), Rule.ABANDONED, NEVER_CAME),
    "its workflow forgotten, without a deadline": (
        unregistered(workflow=Workflow(open=False), deadline_at=None), Rule.ABANDONED, NEVER_CAME),
    "past its deadline for the grace": (unregistered(deadline_at=ago(120)), Rule.SPARED, None),
    "past its deadline for more": (unregistered(deadline_at=ago(121)), Rule.OVERDUE, NEVER_CAME),
    "past its deadline, its spawn under way": (
        unregistered(deadline_at=ago(9999), workflow=Workflow(open=True, acting=True)), Rule.SPARED, None),
    "past its deadline, Temporal silent": (unregistered(deadline_at=ago(9999), workflow=None), Rule.SPARED, None),
    "without a deadline": (unregistered(spawned_at=ago(99_999), deadline_at=None), Rule.SPARED, None),
    # completed
    "completed, its workflow stands": (registered(5, completed=True), Rule.COMPLETED, None),
    "completed, silent, and nobody could have heard it": (
        registered(500, completed=True, gateway_since=None), Rule.COMPLETED, None),
    "completed, silent, and its workflow is gone": (
        registered(500, completed=True, workflow=GONE), Rule.COMPLETED, None),
    "completed and stranded, its workflow gone": (
        registered(1800, completed=True, workflow=GONE), Rule.COMPLETED, None),
    "completed, closing": (closing(completed=True), Rule.ATTENDED, None),
    "completed and stranded": (registered(1800, completed=True), Rule.STRANDED, LOST),
}  # fmt: skip


@pytest.mark.parametrize(("candidate", "rule", "end"), CELLS.values(), ids=CELLS.keys())
def test_a_cell_of_the_table(candidate: Candidate, rule: Rule, end: EndReason | None) -> None:
    judgement = judge(candidate, W, NOW)

    assert (judgement.rule, judgement.end) == (rule, end)
    assert verdict(candidate, W, NOW) is end


def test_every_rule_has_its_cell() -> None:
    assert {rule for _, rule, _ in CELLS.values()} == set(Rule)


def test_who_is_spared_has_no_end_and_who_is_not_has_one() -> None:
    for candidate, rule, end in CELLS.values():
        assert (end is None) == (rule.action is Action.SPARE or rule is Rule.COMPLETED), candidate


def test_the_windows_are_those_of_the_configuration() -> None:
    asked = Reaper.model_validate({
        "agentTimeoutSeconds": 1, "instanceTimeoutSeconds": 2, "flapGraceSeconds": 3, "strandedTimeoutSeconds": 4,
        "reattemptSeconds": 5,
    })  # fmt: skip

    assert Windows.of(Reaper()) == W
    assert Windows.of(asked) == Windows(*(timedelta(seconds=n) for n in (1, 2, 3, 4, 5)))


@pytest.mark.parametrize("way", [None, Way("s1", "host-1", "http://gateway")])
def test_whose_gateway_is_gone_is_not_given_up_for_that_without_a_sign_of_somewhere_to_go(way: Way | None) -> None:
    for absent in lengths:
        lost = registered(absent, gateway_seen_at=None, reached_since=None, way=way)

        assert judge(lost, W, NOW).rule is not Rule.DESERTED


# ── whatever the facts are ──────────────────────────────────────────────────────────────────────────────────────────

lengths = (1, 44, 45, 46, 89, 90, 91, 119, 120, 121, 599, 600, 601, 1799, 1800, 1801, 9999)
"""Around the default windows; which of them are the windows is drawn too."""
moments = st.sampled_from([ago(seconds) for seconds in (-600, -1, 0, *lengths)])
maybe = st.none() | moments
windows = st.builds(Windows, *(st.sampled_from([timedelta(seconds=s) for s in lengths]) for _ in range(5)))
names = st.none() | st.just("x")
workflows = st.none() | st.builds(
    Workflow, open=st.booleans(), closed_at=maybe, acting=st.booleans(), tearing_down=st.booleans()
)
candidates = st.builds(
    Candidate, agent_id=st.just("a1"), spawned_at=moments, workflow_id=names, owner=names, adopted_by=names,
    adopted_at=maybe, last_seen_at=maybe, gateway_seen_at=maybe, gateway_since=maybe, reached_since=maybe,
    deadline_at=maybe, closing_at=maybe, end_reason=st.none() | st.sampled_from(EndReason), condemned=st.booleans(),
    completed=st.booleans(), workflow=workflows, teardown_open=st.none() | st.booleans(),
)  # fmt: skip
standing = candidates.map(lambda candidate: replace(candidate, closing_at=None))
many = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
"""Who is spared is passed over by some of these, and most are."""


@many
@given(standing, windows)
def test_a_registered_agent_that_was_seen_within_the_agent_timeout_is_never_condemned(
    candidate: Candidate, window: Windows
) -> None:
    absence = candidate.absence(NOW)
    assume(absence is not None and absence <= window.agent_timeout)

    assert verdict(candidate, window, NOW) is None


@many
@given(standing, windows)
def test_nobody_is_condemned_on_less_than_the_flap_grace(candidate: Candidate, window: Windows) -> None:
    end = verdict(candidate, window, NOW)
    assume(end is not None)

    absence, workflow = candidate.absence(NOW), candidate.workflow
    if absence is not None:
        assert absence >= silence_needed(judge(candidate, window, NOW).rule, window) or absence > window.agent_timeout
        assert absence >= window.flap_grace
    else:
        assert workflow is not None
        since = candidate.deadline_at if workflow.open else workflow.closed_at or candidate.deadline_at
        assert NOW - (since or candidate.spawned_at) >= window.flap_grace


@many
@given(standing, windows)
def test_whose_owner_nobody_knows_is_spared(candidate: Candidate, window: Windows) -> None:
    assert verdict(replace(candidate, owner=None, adopted_by=None, workflow_id=None), window, NOW) is None


@many
@given(standing, windows)
def test_no_registered_agent_is_condemned_by_who_is_blind(candidate: Candidate, window: Windows) -> None:
    new = NOW - window.flap_grace + timedelta(seconds=1)
    for since in (None, new):
        blind = replace(candidate, adopted_by="gateway-1", gateway_since=since)

        assert verdict(blind, window, NOW) is None


@many
@given(candidates, windows)
def test_a_silent_temporal_condemns_nobody_whom_an_open_workflow_would_spare(
    candidate: Candidate, window: Windows
) -> None:
    spared = replace(candidate, workflow=Workflow(open=True, acting=True), teardown_open=True)
    assume(verdict(spared, window, NOW) is None)

    assert verdict(replace(candidate, workflow=None, teardown_open=None), window, NOW) is None


@many
@given(candidates, windows)
def test_temporal_is_asked_wherever_its_answer_matters(candidate: Candidate, window: Windows) -> None:
    unasked = replace(candidate, workflow=None, teardown_open=None)
    assume(not depends_on_workflow(unasked, window, NOW))

    assert verdict(replace(unasked, workflow=candidate.workflow), window, NOW) is verdict(unasked, window, NOW)


@many
@given(standing, windows)
def test_a_longer_silence_never_saves(candidate: Candidate, window: Windows) -> None:
    """What ends an agent goes on ending it: the next pass does not think better of it."""
    later = NOW + timedelta(seconds=7)
    assume(candidate.gateway_since is not None)
    assume(verdict(candidate, window, NOW) is not None)

    assert verdict(candidate, window, later) is not None
