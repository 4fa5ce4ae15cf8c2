"""Doctor on provisions: each way to be stuck is one finding, with its cause and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from hatchway.cli import doctor_workflows
from hatchway.cli.findings import Finding
from hatchway.client import Started
from hatchway.errors import DestroyError
from hatchway.model import ProvisionState
from hatchway.task_queues import CONTROL
from tests.integration.reap.facts import aged
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.states import AT, let_go

S = ProvisionState
Look = Callable[[str], Awaitable[list[Finding]]]
LONG_AGO = 3600


async def _closing(lab: Lab) -> Started:
    """Closing for an hour, and its teardown cannot be confirmed."""

    async def away(_agent_id: str) -> None:
        raise DestroyError("the engine answered 500")

    lab.backend.before_destroy = away
    started = await AT["active"](lab)
    await lab.complete(started)

    async def failed() -> bool:
        pending = (await lab.handle(started).describe()).raw_description.pending_activities
        return any(step.HasField("last_failure") for step in pending)

    await until(failed)
    await aged(lab.db, "closing_at", LONG_AGO, started.agent_id)
    return started


async def _only(look: Look, started: Started) -> Finding:
    (finding,) = await look("provisions")
    assert finding.where.startswith(f"agent {started.agent_id}, scaler laptop, ")
    return finding


async def test_nothing_is_said_of_provisions_that_go_on_in_time(lab: Lab, look: Look) -> None:
    started = await AT["active"](lab)

    assert await look("provisions") == []

    await let_go(lab, started)


async def test_a_teardown_that_fails_is_told_with_its_last_error(lab: Lab, look: Look) -> None:
    started = await _closing(lab)

    finding = await _only(look, started)

    assert finding.what == "closing for 60 min: its last attempt failed: the engine answered 500"
    assert f"hatchway show {started.agent_id}" in finding.todo


async def test_a_teardown_on_a_host_whose_worker_is_gone_names_the_host_and_forget(lab: Lab, look: Look) -> None:
    started = await _closing(lab)
    await lab.db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 hour'")

    finding = await _only(look, started)

    assert finding.what == "closing for 60 min: nobody polls host host-1"
    assert f"`hatchway forget {started.agent_id}`" in finding.todo
    assert "cancel" not in finding.todo


async def test_a_closing_agent_that_nobody_tears_down_is_left_to_the_sweep(lab: Lab, look: Look) -> None:
    started = await _closing(lab)
    await lab.handle(started).terminate("by test")

    finding = await _only(look, started)

    assert finding.what == "closing for 60 min: neither its workflow nor its teardown is open"
    assert "if the sweep runs" in finding.todo


async def test_a_workflow_whose_code_fails_is_called_a_bug(
    lab: Lab, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_workflows, "FAILING_TASK", 2)
    started = await _closing(lab)
    unknown = await lab.temporal.start_workflow("NoSuchWorkflow", id=f"teardown/{started.agent_id}", task_queue=CONTROL)

    async def said() -> Finding | None:
        finding = await _only(look, started)
        return finding if "code of its workflow fails" in finding.what else None

    finding = await until(said)

    assert f"teardown/{started.agent_id}" in finding.what
    await unknown.terminate("by test")


@pytest.mark.parametrize("state", ["awaiting-adoption", "spawning"])
async def test_an_overdue_agent_whose_workflow_is_gone_is_left_to_the_sweep(lab: Lab, look: Look, state: str) -> None:
    started = await AT[state](lab)
    await lab.handle(started).terminate("by test")
    await aged(lab.db, "deadline_at", LONG_AGO, started.agent_id)

    finding = await _only(look, started)

    assert finding.what == "overdue for 60 min: its workflow is gone, which somebody has terminated"
    assert "reap --dry-run" in finding.todo


async def test_an_overdue_agent_on_a_host_without_a_worker_is_to_be_cancelled_and_forgotten(
    lab: Lab, look: Look
) -> None:
    started = await AT["awaiting-adoption"](lab)
    await aged(lab.db, "deadline_at", LONG_AGO, started.agent_id)
    await lab.db.fetch_all("update scaler_instances set last_seen_at = now() - interval '1 hour'")

    finding = await _only(look, started)

    assert finding.what == "overdue for 60 min: nobody polls host host-1"
    assert f"`hatchway cancel {started.agent_id}`, then `hatchway forget {started.agent_id}`" in finding.todo
    await let_go(lab, started)


async def test_an_overdue_agent_whose_workflow_does_not_act_is_said_to_be_so(lab: Lab, look: Look) -> None:
    started = await AT["awaiting-adoption"](lab)
    await aged(lab.db, "deadline_at", LONG_AGO, started.agent_id)

    finding = await _only(look, started)

    assert finding.what == "overdue for 60 min: its workflow has not acted"
    await let_go(lab, started)


@pytest.mark.parametrize(("column", "limit"), [("deadline_at", "OVERDUE"), ("closing_at", "CLOSING")])
async def test_nobody_is_stuck_before_the_limit(lab: Lab, look: Look, column: str, limit: str) -> None:
    gate = lab.backend.before_destroy = Gate()
    started = await AT["awaiting-adoption"](lab)
    if column == "closing_at":
        await lab.exits(started)
        await gate.reached.wait()
    within: timedelta = getattr(doctor_workflows, limit) - timedelta(seconds=30)
    await aged(lab.db, column, within.total_seconds(), started.agent_id)

    assert await look("provisions") == []

    gate.open()
    await let_go(lab, started)
