"""The rules of a provision's life, every cell of them."""

from __future__ import annotations

from itertools import product

import pytest

from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState, ScaleDownReason
from hatchway.transitions import (
    ADOPTABLE,
    BENIGN,
    RELEASES,
    SERVED,
    TRANSITIONS,
    Facts,
    decide,
    failure_type,
    wire_reason,
)

S = ProvisionState


def _reachable(state: ProvisionState) -> set[ProvisionState]:
    found: set[ProvisionState] = set()
    open_ = {state}
    while open_:
        following = set().union(*(TRANSITIONS[s] for s in open_)) - found
        found |= following
        open_ = following
    return found


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(ProvisionState)


@pytest.mark.parametrize("state", [s for s in S if s is not S.CLOSED])
def test_every_state_has_an_exit(state: ProvisionState) -> None:
    assert S.CLOSED in _reachable(state)


@pytest.mark.parametrize("state", [S.RESOLVING, S.SPAWNING, S.AWAITING_ADOPTION, S.ACTIVE])
def test_every_state_that_holds_a_slot_leads_to_the_teardown_in_one_step(state: ProvisionState) -> None:
    assert S.TEARING_DOWN in TRANSITIONS[state]


def test_a_slot_is_released_only_through_the_teardown() -> None:
    before_closed = {state for state, following in TRANSITIONS.items() if S.CLOSED in following}

    assert before_closed == {S.RESERVING, S.QUEUED, S.TEARING_DOWN}


def test_nothing_leads_back_from_a_teardown() -> None:
    assert _reachable(S.TEARING_DOWN) == {S.CLOSED}
    assert _reachable(S.CLOSED) == set()


def test_only_the_line_is_entered_twice() -> None:
    in_a_circle = {state for state in S if state in _reachable(state)}

    assert in_a_circle == {S.RESERVING, S.QUEUED}


def test_an_agent_is_adopted_from_the_spawn_call_on_and_never_in_a_teardown() -> None:
    assert {S.SPAWNING, S.AWAITING_ADOPTION, S.ACTIVE} == ADOPTABLE


# ── the outcome ─────────────────────────────────────────────────────────────────────────────────────────────────────

RANKED: list[tuple[dict[str, object], EndReason]] = [
    ({"completed": True, "adopted": True}, EndReason.COMPLETED),
    ({"cancelled": True}, EndReason.CANCELLED),
    ({"exited": True}, EndReason.COMPUTE_EXITED),
    ({"condemned": EndReason.HEARTBEAT_TIMEOUT}, EndReason.HEARTBEAT_TIMEOUT),
    ({"released": EndReason.DRAINED}, EndReason.DRAINED),
    ({"stage_end": EndReason.ADOPTION_TIMEOUT}, EndReason.ADOPTION_TIMEOUT),
]


@pytest.mark.parametrize("known", list(product([False, True], repeat=len(RANKED))))
def test_the_first_fact_in_the_written_order_decides_whatever_else_is_known(known: tuple[bool, ...]) -> None:
    """All 64 combinations."""
    facts: dict[str, object] = {}
    expected = None
    for is_known, (fact, end) in zip(known, RANKED, strict=True):
        if is_known:
            facts |= fact
            expected = expected or end

    if expected is None:
        with pytest.raises(ValueError, match="no fact"):
            decide(Facts(**facts))  # type: ignore[arg-type]
    else:
        assert decide(Facts(**facts)) is expected  # type: ignore[arg-type]


def test_a_completion_without_an_agent_is_no_completion() -> None:
    assert decide(Facts(completed=True, cancelled=True)) is EndReason.CANCELLED
    assert decide(Facts(released=EndReason.COMPLETED)) is EndReason.RELEASED


@pytest.mark.parametrize("end", EndReason)
@pytest.mark.parametrize("adopted", [False, True])
def test_every_end_has_a_type_and_a_word_on_the_wire(end: EndReason, adopted: bool) -> None:
    assert failure_type(end, adopted) in ErrorType
    assert wire_reason(end, adopted) in ScaleDownReason


@pytest.mark.parametrize(
    ("end", "adopted", "wire"),
    [
        (EndReason.COMPLETED, True, ScaleDownReason.JOB_COMPLETE),
        (EndReason.IDLE, True, ScaleDownReason.IDLE),
        (EndReason.DRAINED, True, ScaleDownReason.DRAIN),
        (EndReason.RELEASED, True, ScaleDownReason.SHUTDOWN),
        (EndReason.OPERATOR, True, ScaleDownReason.SHUTDOWN),
        (EndReason.CANCELLED, True, ScaleDownReason.SHUTDOWN),
        (EndReason.CANCELLED, False, ScaleDownReason.SHUTDOWN),
        (EndReason.MAX_LIFETIME, True, ScaleDownReason.SHUTDOWN),
        (EndReason.COMPUTE_EXITED, True, ScaleDownReason.HEARTBEAT_TIMEOUT),
        (EndReason.HEARTBEAT_TIMEOUT, True, ScaleDownReason.HEARTBEAT_TIMEOUT),
        (EndReason.COMPUTE_EXITED, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.ADOPTION_TIMEOUT, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.SPAWN_FAILED, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.AUTH_REFUSED, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.RELEASED, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.OPERATOR, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.IDLE, False, ScaleDownReason.SPAWN_TIMEOUT),
        (EndReason.DRAINED, False, ScaleDownReason.SPAWN_TIMEOUT),
    ],
)
def test_the_map_to_the_wire(end: EndReason, adopted: bool, wire: ScaleDownReason) -> None:
    assert wire_reason(end, adopted) is wire


def test_only_a_release_may_serve_a_job() -> None:
    assert SERVED == RELEASES
    assert {failure_type(end, adopted=False) for end in RELEASES} <= BENIGN
