"""Saved histories are replayed on every change: a workflow that would go another way than it went is caught here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

import workflows
from hatchway.converter import data_converter
from hatchway.errors import ErrorType
from tests.support.endings import ENDS

HISTORIES = Path(__file__).parents[2] / "histories"


def _load(name: str) -> dict[str, Any]:
    """A missing file is a failure: record it with `python -m tests.support.record_histories NAME`."""
    loaded: dict[str, Any] = json.loads((HISTORIES / f"{name}.json").read_text())
    return loaded


async def _replay(name: str, registered: list[type[Any]] | None = None) -> None:
    saved = _load(name)
    replayer = Replayer(workflows=registered or workflows.ALL, data_converter=data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json(saved["workflow_id"], saved["history"]))


@workflow.defn(name="ProvisionWorkflow", sandboxed=False)
class Idle:
    @workflow.run
    async def run(self, request: Any = None) -> None:
        return None


@pytest.mark.scenario("S42")
@pytest.mark.parametrize("name", ENDS)
async def test_a_saved_history_replays(name: str) -> None:
    await _replay(name)


@pytest.mark.parametrize("name", [name for name, (_, error) in ENDS.items() if error])
def test_a_saved_history_ends_with_the_type_that_it_is_named_for(name: str) -> None:
    last = _load(name)["history"]["events"][-1]

    failure = last["workflowExecutionFailedEventAttributes"]["failure"]

    assert failure["applicationFailureInfo"]["type"] == ENDS[name][1]


def test_every_end_of_a_workflow_has_a_saved_history() -> None:
    ends = {
        ErrorType.INVALID_REQUEST, ErrorType.DECLINED, ErrorType.RELEASED, ErrorType.NO_MATCHING_SCALER,
        ErrorType.AUTH_REFUSED, ErrorType.SPAWN_FAILED, ErrorType.ADOPTION_TIMEOUT, ErrorType.AGENT_LOST,
        ErrorType.LIFETIME_EXCEEDED, ErrorType.ALREADY_ENDED,
    }  # fmt: skip

    assert {error for _, error in ENDS.values() if error} == ends
    assert {path.stem for path in HISTORIES.glob("*.json")} == set(ENDS)


def test_no_history_tells_of_the_machine_that_it_was_recorded_on() -> None:
    for path in HISTORIES.glob("*.json"):
        assert "stackTrace" not in path.read_text(), path.name


async def test_a_workflow_that_goes_another_way_is_caught() -> None:
    """The check itself can fail: a provision that does nothing does not replay."""
    with pytest.raises(workflow.NondeterminismError):
        await _replay("completed", [Idle])
