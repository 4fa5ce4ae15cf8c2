"""What a step that failed says of the workers that should have taken it."""

from __future__ import annotations

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState, TimeoutError, TimeoutType

from workflows.steps import nobody_took_it


def ended(cause: FailureError, *, started: bool) -> ActivityError:
    """As the server ends an activity whose last attempt had been started, or never was."""
    error = ActivityError(
        "Activity task failed", scheduled_event_id=5, started_event_id=6 if started else 0, identity="",
        activity_type="teardown", activity_id="1", retry_state=RetryState.TIMEOUT,
    )  # fmt: skip
    error.__cause__ = cause
    return error


def timed_out(kind: TimeoutType) -> TimeoutError:
    return TimeoutError("timed out", type=kind, last_heartbeat_details=[])


@pytest.mark.parametrize(
    ("cause", "started", "nobody"),
    [
        (timed_out(TimeoutType.SCHEDULE_TO_START), False, True),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), False, True),
        (timed_out(TimeoutType.SCHEDULE_TO_CLOSE), True, False),
        (timed_out(TimeoutType.START_TO_CLOSE), True, False),
        (timed_out(TimeoutType.HEARTBEAT), True, False),
        (ApplicationError("the engine is away"), True, False),
    ],
)
def test_nobody_took_it_is_said_of_what_was_never_started(cause: FailureError, started: bool, nobody: bool) -> None:
    """And not of an attempt that hung until its round was over: its worker is there."""
    assert nobody_took_it(ended(cause, started=started)) is nobody
