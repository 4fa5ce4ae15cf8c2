"""A teardown that is put off by its target asks again when it was told to, and not after its round."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.models import TeardownInput
from activities.teardown import TeardownActivities
from hatchway.errors import DestroyError
from hatchway.model import ScaleDownReason, TeardownFacts

MINUTE = timedelta(minutes=1)


class PutOff:
    """A backend whose target asks for a pause."""

    host_id = "scaler.customers"

    def __init__(self, pause: timedelta | None) -> None:
        self._pause = pause

    async def destroy(self, *_: object) -> None:
        raise DestroyError("not taken yet", self._pause)


@pytest.mark.parametrize(
    ("asked", "left", "granted"),
    [
        (None, 60 * MINUTE, None),
        (timedelta(0), 60 * MINUTE, None),
        (2 * MINUTE, 60 * MINUTE, 2 * MINUTE),
        (2 * MINUTE, None, 2 * MINUTE),
        (120 * MINUTE, 60 * MINUTE, 59 * MINUTE + timedelta(seconds=50)),
        (2 * MINUTE, timedelta(seconds=30), timedelta(seconds=20)),
        (2 * MINUTE, timedelta(seconds=10), None),
    ],
)
async def test_the_next_attempt_comes_when_asked_but_within_the_round(
    asked: timedelta | None, left: timedelta | None, granted: timedelta | None
) -> None:
    environment = ActivityEnvironment()
    began = datetime.now(UTC)
    environment.info = replace(
        environment.info, scheduled_time=began, started_time=began, schedule_to_close_timeout=left
    )
    backends = {"event": cast("Any", PutOff(asked))}
    step = TeardownActivities(PutOff.host_id, backends, *cast("Any", [SimpleNamespace()] * 3))
    facts = TeardownFacts(backend_type="event", host_id=PutOff.host_id)

    with pytest.raises(ApplicationError) as refused:
        await environment.run(
            step.teardown, TeardownInput(agent_id="scaler-1", facts=facts, reason=ScaleDownReason.IDLE)
        )

    error = refused.value
    found = error.next_retry_delay
    assert error.type == "DestroyError"
    assert found == granted if granted is None or found is None else abs(found - granted) < timedelta(seconds=5)
