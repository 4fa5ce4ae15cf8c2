"""A job that is offered right after an apply is judged by what was applied, whatever this worker has read last."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.config import current
from hatchway.model import ProvisionState
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import label_set, laptop

S = ProvisionState

OTHER = {**laptop()["scalers"][0], "name": "other"}


@pytest.fixture(autouse=True)
def _believed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every offer of these tests comes before the worker would have looked again."""
    monkeypatch.setattr(current, "FRESH_FOR_SECONDS", 3600.0)


@pytest.mark.parametrize(
    ("applied", "request_"),
    [
        ({"version": 1, "scalers": [OTHER]}, {"labels": ["linux"]}),
        ({"version": 1, "scalers": [OTHER]}, {"labels": ["linux"], "on_capacity": "decline"}),
        (
            {"version": 1, "scalers": [*laptop(maxAgents=1)["scalers"], {**OTHER, "labelSets": [label_set("new")]}]},
            {"labels": ["new"]},
        ),
        (
            {"version": 1, "scalers": [*laptop(maxAgents=1)["scalers"], OTHER]},
            {"labels": ["linux"], "on_capacity": "decline"},
        ),
    ],
    ids=[
        "its scaler was replaced",
        "the same, and it will not wait",
        "its label is new",
        "there is room elsewhere now",
    ],
)
async def test_a_job_gets_a_slot_by_the_configuration_that_was_just_applied(
    lab: Lab, applied: dict[str, Any], request_: dict[str, Any]
) -> None:
    # Arrange: the worker has read a configuration, by which laptop has one slot, and that is taken.
    await lab.apply(laptop(maxAgents=1))
    holder = await lab.provision(job_id="holder")
    await lab.reaches(holder, S.AWAITING_ADOPTION)

    # Act
    await lab.apply(applied)
    started = await lab.provision(job_id="job-1", **request_)

    # Assert
    async def reserved() -> str | None:
        row = await lab.slots.get(started.agent_id)
        return row.scaler if row else None

    assert await until(reserved, what="a slot") == "other"
    for each in (started, holder):
        await lab.hatchway.cancel(each.workflow_id, "by test")
    await lab.nothing_left()
