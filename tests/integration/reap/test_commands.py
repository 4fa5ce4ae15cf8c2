"""What an operator has in hand: `reap --dry-run`, `forget` for whom nobody tears down, and what `doctor` says."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hatchway.model import EndReason, ProvisionState, TeardownState
from tests.integration.cli.conftest import Hatchway
from tests.integration.reap.facts import gateway, silent, state_of, terminated
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.states import AT, let_go

Command = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]

MOVED = (
    "insert into scaler_spawning_agents (agent_id, scaler_name, state, spawned_at) "
    "values ('moved', 'laptop', 'spawned', now() - interval '9 days')"
)
"""A row from elsewhere: nobody here knows its owner, its gateway or its workflow."""


@pytest.fixture
def hatchway(lab: Lab, database_url: str) -> Command:
    """The command line, pointed at the lab. In a thread: the lab's worker runs in this process."""
    address = lab.temporal.service_client.config.target_host
    command = Hatchway(
        {
            "DATABASE_URL": database_url,
            "TEMPORAL_ADDRESS": address,
            "TEMPORAL_NAMESPACE": lab.temporal.namespace,
        }
    )

    async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, *arguments)

    return run


async def _dry_run(hatchway: Command) -> dict[str, Any]:
    done = await hatchway("reap", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_a_dry_run_says_of_each_agent_what_would_be_done_and_why_and_does_nothing(
    lab: Lab, hatchway: Command
) -> None:
    await gateway(lab.db)
    started = await AT["active"](lab)
    await terminated(lab, started)
    await silent(lab.db, 5)
    await lab.db.fetch_all(MOVED)

    said = await _dry_run(hatchway)
    text = await hatchway("reap", "--dry-run")

    gone, moved = sorted(said["agents"], key=lambda agent: str(agent["agent_id"]), reverse=True)
    assert (gone["agent_id"], gone["does"], gone["end_reason"], gone["workflow"], gone["job_id"]) == (
        started.agent_id, "condemns", "heartbeat-timeout", "gone", "job-1")  # fmt: skip
    assert gone["why"] == "silent for the flap grace, and its workflow is gone"
    assert 5 <= gone["absent_s"] < 60
    assert (moved["agent_id"], moved["does"], moved["end_reason"], moved["absent_s"]) == ("moved", "spares", None, None)
    assert (said["blocked"], said["stands_down"]) == (False, None)
    assert started.agent_id in text.stdout
    assert "only `hatchway forget` ends it" in text.stdout
    assert await state_of(lab, started) == "active"
    await lab.db.fetch_all("delete from scaler_spawning_agents where agent_id = 'moved'")
    assert (await lab.sweep()).steps["reap"].done["condemned"] == 1
    await lab.nothing_left()


async def test_a_dry_run_says_why_an_agent_without_its_gateway_is_spared_and_until_when(
    lab: Lab, hatchway: Command
) -> None:
    await gateway(lab.db, silent_for=4000)
    await gateway(lab.db, "gateway-2")
    started = await AT["active"](lab)
    await silent(lab.db, 300)

    said = await _dry_run(hatchway)

    (agent,) = said["agents"]
    assert (agent["agent_id"], agent["does"], agent["workflow"]) == (started.agent_id, "spares", "open")
    assert "no other one has heard agents of its scaler, host and orchestratorUrl" in agent["why"]
    assert "until the stranded timeout" in agent["why"]
    await lab.complete(started)
    await lab.outcome(started)


async def test_a_dry_run_without_anybody_to_think_about_says_so_and_without_its_option_it_is_refused(
    hatchway: Command,
) -> None:
    text, refused = await hatchway("reap", "--dry-run"), await hatchway("reap")

    assert text.stdout == "no agent to think about\n"
    assert refused.returncode == 2
    assert "temporal schedule trigger" in refused.stderr


async def test_a_dry_run_over_agents_that_are_well_says_how_many_it_has_looked_at(lab: Lab, hatchway: Command) -> None:
    """Also where the workflow of one has been terminated: while it is heard of, it may finish its job."""
    started = await AT["active"](lab)
    await lab.handle(started).terminate()
    await silent(lab.db, -3600)  # heard of, however long a command takes

    said = await hatchway("reap", "--dry-run")

    assert said.stdout == (
        "no agent to think about: 1 holds a slot, and none is silent, overdue or closing; one that is heard of may "
        "finish its job, whatever became of its workflow\n"
    )
    await lab.db.fetch_all("delete from scaler_spawning_agents")


async def test_a_dry_run_in_another_namespace_says_that_nothing_would_be_done(lab: Lab, hatchway: Command) -> None:
    await lab.db.fetch_all("update hatchway_installation set namespace_uuid = 'another', tied_at = now()")

    said = await _dry_run(hatchway)

    assert said["agents"] == []
    assert "another Temporal namespace" in said["stands_down"]


async def test_blindness_and_unknown_owners_are_said_by_the_doctor_and_the_dry_run(lab: Lab, hatchway: Command) -> None:
    started = await AT["active"](lab)
    await silent(lab.db, 500)
    await lab.db.fetch_all(MOVED)

    dry = await hatchway("reap", "--dry-run")
    done = await hatchway("doctor", "--json")

    assert "flap grace (1 s)" in dry.stdout
    findings = {f["where"]: f for f in json.loads(done.stdout)["findings"] if f["check"] == "reaper"}
    assert "blind: 1 silent agent spared" in dry.stdout
    assert len(findings) == 2
    blind = next(f for f in findings.values() if "blind" in f["what"])
    assert "1 silent agent" in blind["what"]
    assert "gateway" in blind["todo"]
    assert "hatchway forget moved" in findings["agent moved"]["todo"]
    await gateway(lab.db)
    await lab.db.fetch_all("delete from scaler_spawning_agents where agent_id = 'moved'")
    await lab.complete(started)
    await lab.outcome(started)
    after = json.loads((await hatchway("doctor", "--json")).stdout)
    assert [f for f in after["findings"] if f["check"] == "reaper"] == []


async def test_the_doctor_does_not_promise_that_the_sweep_ends_whom_the_reaper_spares_for_ever(
    lab: Lab, hatchway: Command
) -> None:
    await lab.db.fetch_all(MOVED)
    await lab.db.fetch_all("update scaler_spawning_agents set deadline_at = now() - interval '1 day'")

    found = json.loads((await hatchway("doctor", "--json")).stdout)["findings"]

    about = {f["check"] for f in found if "agent moved" in f["where"]}
    assert "reaper" in about
    assert "provisions" not in about
    await lab.db.fetch_all("delete from scaler_spawning_agents")


# ── forget ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", ["awaiting-adoption", "active", "tearing-down"])
async def test_an_agent_whose_workflow_is_gone_is_forgotten_on_the_operators_word(
    lab: Lab, hatchway: Command, state: str
) -> None:
    """Nobody polls its host any more, and nobody tears it down."""
    started = await AT[state](lab)
    await lab.handle(started).terminate()
    await let_go(lab, started)
    await lab.stop_host(lab.backend.host_id)

    done = await hatchway("forget", started.agent_id, "--by", "alice", "--json")
    await until(lambda: _slot_is_free(lab, started.agent_id))

    assert done.returncode == 0, done.stderr
    teardown = lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}")
    assert (await teardown.result())["teardown"] == TeardownState.PENDING.value
    said = [
        event.workflow_execution_signaled_event_attributes.input.payloads[0].data
        async for event in teardown.fetch_history_events()
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert [json.loads(data) for data in said] == [{"agent_id": started.agent_id, "by": "alice"}]
    outcome = await lab.outcomes.get(started.agent_id)
    assert outcome is not None
    assert outcome.end_reason == (
        EndReason.COMPUTE_EXITED.value if state == "tearing-down" else EndReason.OPERATOR.value
    )
    lab.cloud.live.clear()


async def test_a_job_that_was_offered_again_keeps_its_slot_when_its_older_agent_is_forgotten(
    lab: Lab, hatchway: Command
) -> None:
    """One workflow id, two agents: the word is about the older one."""
    first = await AT["active"](lab)
    lab.backend.before_destroy = gate = Gate()
    await lab.release(first, now=True)
    await gate.reached.wait()
    await lab.handle(first).terminate()
    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, ProvisionState.AWAITING_ADOPTION)  # its reserve starts the teardown after its commit
    await lab.temporal.get_workflow_handle(f"teardown/{first.agent_id}").terminate()

    done = await hatchway("forget", first.agent_id)
    await until(lambda: _slot_is_free(lab, first.agent_id))

    assert done.returncode == 0, done.stderr
    assert await _holds_a_slot(lab, second.agent_id)
    await let_go(lab, first)
    await lab.hatchway.cancel(second.workflow_id)
    await until(lambda: _slot_is_free(lab, second.agent_id))
    lab.cloud.live.clear()


@pytest.mark.parametrize("command", ["cancel", "release"])
async def test_a_job_that_was_offered_again_keeps_its_agent_when_the_older_one_is_let_go(
    lab: Lab, hatchway: Command, command: str
) -> None:
    """An operator who tidies up after a dead host means the agent there, and not the busy one of the same job."""
    first = await AT["active"](lab)
    lab.backend.before_destroy = gate = Gate()
    await lab.release(first, now=True)
    await gate.reached.wait()
    await lab.handle(first).terminate()
    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, ProvisionState.AWAITING_ADOPTION)
    await lab.adopt(second, "r-2")

    refused = await hatchway(command, first.agent_id, "--json")

    assert json.loads(refused.stderr)["error"] == "closed"
    assert f"teardown/{first.agent_id}" in refused.stderr
    gate.open()
    await until(lambda: _slot_is_free(lab, first.agent_id))
    await lab.complete(second, registration="r-2")
    assert (await lab.outcome(second)).result == "succeeded"
    await lab.nothing_left()


async def test_a_row_whose_owner_nobody_knows_ends_by_forget(lab: Lab, hatchway: Command) -> None:
    await lab.db.fetch_all(MOVED)

    done = await hatchway("forget", "moved", "--by", "alice")
    await until(lambda: _slot_is_free(lab, "moved"))

    assert done.returncode == 0, done.stderr
    assert "forgotten" in done.stdout
    assert await lab.db.fetch_all("select end_reason from scaler_provision_outcomes") == [("operator",)]


async def test_an_agent_whose_workflow_is_open_is_not_forgotten_before_its_teardown(
    lab: Lab, hatchway: Command
) -> None:
    started = await AT["active"](lab)

    refused = await hatchway("forget", started.agent_id, "--json")

    assert json.loads(refused.stderr)["error"] == "not_tearing_down"
    assert await state_of(lab, started) == "active"
    await lab.complete(started)
    await lab.outcome(started)


async def _slot_is_free(lab: Lab, agent_id: str) -> bool:
    return await lab.slots.get(agent_id) is None


async def _holds_a_slot(lab: Lab, agent_id: str) -> bool:
    return await lab.slots.get(agent_id) is not None
