"""The rules of a provision's life, as data: which state may follow which, and which fact decides the end.

Pure. `workflows/provision.py` enters states only through `TRANSITIONS` and decides its outcome only through `decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState, ScaleDownReason

S = ProvisionState

TRANSITIONS: Mapping[ProvisionState, frozenset[ProvisionState]] = {
    # A reset workflow reserves again for an agent that has a row, and resumes where the row stands.
    S.RESERVING: frozenset({S.QUEUED, S.RESOLVING, S.SPAWNING, S.ACTIVE, S.TEARING_DOWN, S.CLOSED}),
    # The line either gives a slot, which the next reserve takes up, or the provision leaves it.
    S.QUEUED: frozenset({S.RESERVING, S.CLOSED}),
    S.RESOLVING: frozenset({S.SPAWNING, S.TEARING_DOWN}),
    # An agent may register before the spawn call has returned.
    S.SPAWNING: frozenset({S.AWAITING_ADOPTION, S.ACTIVE, S.TEARING_DOWN}),
    S.AWAITING_ADOPTION: frozenset({S.ACTIVE, S.TEARING_DOWN}),
    S.ACTIVE: frozenset({S.TEARING_DOWN}),
    S.TEARING_DOWN: frozenset({S.CLOSED}),
    S.CLOSED: frozenset(),
}

FOLLOWING: Mapping[ProvisionState, frozenset[ProvisionState]] = {S.ACTIVE: frozenset({S.CLOSED})}
"""What a provision may do besides while it follows a warm agent: it holds no slot, so it has nothing to tear down."""

ADOPTABLE = frozenset({S.SPAWNING, S.AWAITING_ADOPTION, S.ACTIVE})
"""The states in which an agent may register."""


@dataclass(frozen=True)
class Facts:
    """What is known about a provision when its outcome is decided. Order of arrival plays no part."""

    adopted: bool = False
    completed: bool = False
    """A completion was signalled or is recorded."""
    cancelled: bool = False
    exited: bool = False
    condemned: EndReason | None = None
    released: EndReason | None = None
    stage_end: EndReason | None = None
    """What the current stage ended with by itself: a deadline, a failed spawn, refused credentials."""


def decide(facts: Facts) -> EndReason:
    """The one reason for which a provision ended. First that is true, top down.

    completion of an adopted agent > cancel > compute exited > condemn > other release > the stage's own end

    Raises ValueError when no fact ended it: a provision does not end for nothing.
    """
    if facts.adopted and facts.completed:
        return EndReason.COMPLETED
    if facts.cancelled:
        return EndReason.CANCELLED
    if facts.exited:
        return EndReason.COMPUTE_EXITED
    if facts.condemned:
        return facts.condemned
    if facts.released:
        # A completion that nobody was adopted for is a release without an agent.
        return EndReason.RELEASED if facts.released is EndReason.COMPLETED else facts.released
    if facts.stage_end:
        return facts.stage_end
    raise ValueError("no fact has ended this provision")


RELEASES = frozenset({
    EndReason.COMPLETED, EndReason.IDLE, EndReason.DRAINED, EndReason.RELEASED, EndReason.OPERATOR,
})  # fmt: skip
"""The reasons that a `release` may carry; every other end has a fact of its own."""

CONDEMNS = frozenset({EndReason.HEARTBEAT_TIMEOUT, EndReason.ADOPTION_TIMEOUT})
"""The reasons of the reaper. With another one, an agent that was given up would pass for one that served."""

SERVED = frozenset({
    EndReason.COMPLETED, EndReason.IDLE, EndReason.DRAINED, EndReason.RELEASED, EndReason.OPERATOR,
})  # fmt: skip
"""Ends after which the workflow is Completed, if an agent had been adopted."""


def failure_type(end: EndReason, adopted: bool) -> ErrorType:
    """The type of the ApplicationError for an end that is neither Completed nor Cancelled."""
    match end:
        case EndReason.SPAWN_FAILED:
            return ErrorType.SPAWN_FAILED
        case EndReason.COMPUTE_EXITED:
            return ErrorType.AGENT_LOST if adopted else ErrorType.SPAWN_FAILED
        case EndReason.HEARTBEAT_TIMEOUT:
            return ErrorType.AGENT_LOST
        case EndReason.ADOPTION_TIMEOUT:
            return ErrorType.ADOPTION_TIMEOUT
        case EndReason.MAX_LIFETIME:
            return ErrorType.LIFETIME_EXCEEDED
        case EndReason.AUTH_REFUSED:
            return ErrorType.AUTH_REFUSED
        case EndReason.NO_MATCHING_SCALER:
            return ErrorType.NO_MATCHING_SCALER
        case EndReason.DECLINED:
            return ErrorType.DECLINED
        case _:
            return ErrorType.RELEASED


BENIGN = frozenset({ErrorType.DECLINED, ErrorType.RELEASED})
"""Ends that are nobody's fault: no alarm, no failure metric."""


def wire_reason(end: EndReason, adopted: bool) -> ScaleDownReason:
    """The reason that a backend or a customer's workflow is told for a teardown."""
    if end is EndReason.CANCELLED:
        return ScaleDownReason.SHUTDOWN
    if not adopted:
        return ScaleDownReason.SPAWN_TIMEOUT
    match end:
        case EndReason.COMPLETED:
            return ScaleDownReason.JOB_COMPLETE
        case EndReason.IDLE:
            return ScaleDownReason.IDLE
        case EndReason.DRAINED:
            return ScaleDownReason.DRAIN
        case EndReason.COMPUTE_EXITED | EndReason.HEARTBEAT_TIMEOUT:
            return ScaleDownReason.HEARTBEAT_TIMEOUT
        case _:
            return ScaleDownReason.SHUTDOWN
