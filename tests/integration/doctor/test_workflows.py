"""Doctor on rows and workflows that disagree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from hatchway.cli import doctor_workflows
from hatchway.cli.findings import Finding
from hatchway.model import EndReason, TeardownFacts
from hatchway.task_queues import CONTROL
from hatchway.teardowns import start_teardown
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.states import AT, let_go

Look = Callable[[str], Awaitable[list[Finding]]]


async def listed(lab: Lab, look: Look, words: str) -> Finding:
    """The one finding that says so; the list of workflows lags behind."""

    async def said() -> Finding | None:
        return next((finding for finding in await look("workflows") if words in finding.what), None)

    finding: Finding = await until(said, what=words)
    return finding


@pytest.mark.parametrize("state", ["queued", "spawning", "awaiting-adoption", "active", "tearing-down"])
async def test_rows_and_workflows_agree_in_every_state(lab: Lab, look: Look, state: str) -> None:
    started = await AT[state](lab)
    await until(lambda: _is_listed(lab, started.workflow_id))

    assert await look("workflows") == []

    await let_go(lab, started)


async def _is_listed(lab: Lab, workflow_id: str) -> bool:
    return any([found.id == workflow_id async for found in lab.temporal.list_workflows()])


async def test_a_provision_without_slot_and_place_is_told(lab: Lab, look: Look) -> None:
    started = await AT["active"](lab)
    await lab.db.fetch_all("delete from scaler_spawning_agents")

    finding = await listed(lab, look, "neither a slot nor a place in the line")

    assert finding.where == f"workflow {started.workflow_id}"
    assert f"hatchway show {started.workflow_id}" in finding.todo


async def test_a_teardown_of_an_agent_without_a_slot_is_told(lab: Lab, look: Look) -> None:
    gate = lab.backend.before_destroy = Gate()
    agent_id = "scaler-" + "0" * 32
    facts = TeardownFacts(backend_type="bare-metal", host_id=lab.backend.host_id)
    await start_teardown(lab.temporal, agent_id, facts, EndReason.RELEASED, adopted=False)

    finding = await listed(lab, look, "a teardown goes on for an agent that holds no slot")

    assert finding.where == f"workflow teardown/{agent_id}"
    assert f"`hatchway forget {agent_id}`" in finding.todo
    gate.open()


async def test_a_row_whose_workflow_was_terminated_is_told(lab: Lab, look: Look) -> None:
    started = await AT["active"](lab)
    await lab.handle(started).terminate("by test")

    finding = await listed(lab, look, "it is active, and its workflow is gone")

    assert finding.where == f"agent {started.agent_id}, workflow {started.workflow_id}"
    assert "a busy one not before" in finding.todo


async def test_workflows_that_a_bug_holds_are_listed(lab: Lab, look: Look) -> None:
    wedged = await lab.temporal.start_workflow("NoSuchWorkflow", id="wedged", task_queue=CONTROL)

    finding = await listed(lab, look, "a bug keeps 1 workflow from going on")

    assert finding.where == "wedged"
    await wedged.terminate("by test")


async def test_more_workflows_than_are_compared_are_said_to_be_more(
    lab: Lab, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_workflows, "LOOKED_AT", 1)
    first, second = await lab.provision(), await lab.provision()

    finding = await listed(lab, look, "more than 1 workflows are open")

    assert finding.todo
    for started in (first, second):
        await let_go(lab, started)
