"""The commands about provisions and agents, against a whole stack."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from hatchway.dev.stack import Stack
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from tests.integration.cli.conftest import Hatchway, until


def job() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def busy(hatchway: Hatchway) -> Iterator[str]:
    """An agent that runs a job which does not end by itself."""
    agent_id = str(hatchway.provision("long", job_id=job())["agent_id"])
    yield agent_id
    hatchway("cancel", agent_id)  # refused where the test has ended it already
    hatchway.until_gone(agent_id)


def test_a_provision_answers_once_its_agent_is_adopted(hatchway: Hatchway) -> None:
    job_id = job()

    said = hatchway.provision("single", job_id=job_id)

    assert set(said) == {"agent_id", "workflow_id", "state", "scaler", "ui_url"}
    assert (said["state"], said["scaler"], said["workflow_id"]) == ("active", "single", f"provision/job/{job_id}")
    assert f"workflows/provision%2Fjob%2F{job_id}/" in said["ui_url"]
    listed = hatchway.agents()[said["agent_id"]]
    assert list(listed) == ["agent_id", "scaler", "state", "age_s", "job_id", "host_id", "adopted_by"]
    assert (listed["state"], listed["job_id"]) == ("active", job_id)
    assert listed["age_s"] >= 0
    hatchway("cancel", said["agent_id"])
    hatchway.until_gone(said["agent_id"])


def test_a_job_that_is_offered_twice_has_one_agent(hatchway: Hatchway) -> None:
    job_id = job()

    first, second = hatchway.provision("long", job_id=job_id), hatchway.provision("long", job_id=job_id)
    hatchway("cancel", first["agent_id"])

    assert first == second


@pytest.mark.parametrize(("label", "result"), [("quick", "succeeded"), ("failing", "failed")])
async def test_a_provision_that_is_waited_for_to_its_end_says_how_its_job_went(
    hatchway: Hatchway, stack: Stack, label: str, result: str
) -> None:
    said = hatchway.provision(label, "--wait", "closed", job_id=job())

    assert (said["state"], said["result"], said["end_reason"]) == ("closed", result, "completed")
    async with Database.open(stack.database_url) as db:
        outcome = await Outcomes(db).get(said["agent_id"])
    assert outcome is not None
    assert (outcome.result, outcome.end_reason) == (result, "completed")


def test_a_job_that_was_served_is_answered_with_what_came_of_it(hatchway: Hatchway) -> None:
    job_id = job()
    first = hatchway.provision("quick", "--wait", "closed", job_id=job_id)

    again = hatchway.provision("quick", job_id=job_id)

    assert again == first


def test_a_provision_that_nobody_waits_for_is_answered_at_once(hatchway: Hatchway) -> None:
    said = hatchway.provision("long", "--wait", "none", job_id=job())

    assert said["agent_id"].startswith("scaler-")
    hatchway("cancel", said["workflow_id"])


def test_a_job_that_declines_to_wait_for_a_slot_exits_3_and_names_the_cap(hatchway: Hatchway) -> None:
    first = hatchway.provision("single", job_id=job())
    request = json.dumps({"labels": ["single"], "job_id": job(), "on_capacity": "decline"})

    plain = hatchway("provision", "-", stdin=request)
    as_json = hatchway("provision", "-", "--json", stdin=request)

    assert (plain.returncode, as_json.returncode) == (3, 3)
    assert "scaler:single is full: 1 of 1 agents" in plain.stderr
    assert json.loads(as_json.stderr)["error"] == "at-capacity"
    assert as_json.stdout == ""
    hatchway("release", "--now", first["agent_id"])
    hatchway.until_gone(first["agent_id"])


def test_labels_that_nobody_has_fail_with_what_each_scaler_lacks(hatchway: Hatchway) -> None:
    done = hatchway("provision", "-", "--json", stdin=json.dumps({"labels": ["windows"]}))

    assert done.returncode == 1
    assert json.loads(done.stderr)["error"] == "NoMatchingScaler"
    assert "windows" in json.loads(done.stderr)["message"]


def test_an_agent_is_shown_by_its_id_and_by_its_workflow(hatchway: Hatchway, busy: str) -> None:
    by_agent = hatchway.object("show", busy)
    by_workflow = hatchway.object("show", by_agent["workflow_id"])

    assert by_agent["state"] == by_workflow["state"] == "active"
    assert by_agent["slot"]["agent_id"] == by_workflow["agent_id"] == busy
    assert by_agent["waiting_for"] == "the agent's work"
    assert "hatchway release" in by_agent["next_step"]


def test_an_agent_that_waits_in_the_line_is_shown_with_its_place_and_is_cancelled(hatchway: Hatchway) -> None:
    first = hatchway.provision("single", job_id=job())
    waiting = hatchway.provision("single", "--wait", "none", job_id=job())

    shown = hatchway.until_shown(waiting["workflow_id"], state="queued")
    cancelled = hatchway("cancel", waiting["workflow_id"])
    for agent in (waiting, first):
        hatchway("cancel", agent["workflow_id"])
    hatchway.until_gone(first["agent_id"])
    after = hatchway.until_shown(waiting["workflow_id"], workflow_status="canceled")

    assert (shown["state"], shown["line_position"]) == ("queued", 1)
    assert "scaler:single is full" in shown["waiting_for"]
    assert cancelled.returncode == 0
    assert (after["state"], after["workflow_status"]) == ("closed", "canceled")
    assert after["next_step"] == "Nothing: it has ended."


def test_the_output_of_an_agent_on_this_host_is_printed(hatchway: Hatchway, busy: str) -> None:
    def printed() -> subprocess.CompletedProcess[str] | None:  # an agent is adopted before its job begins
        done = hatchway("logs", busy)
        return done if "began" in done.stdout else None

    by_agent = until(printed, "the job's output")
    by_workflow = hatchway.object("logs", f"provision/job/{hatchway.agents()[busy]['job_id']}")

    assert by_agent.returncode == 0
    assert "began" in by_agent.stdout
    assert by_workflow["agent_id"] == busy
    assert "began" in by_workflow["text"]


def test_the_output_of_an_agent_on_another_host_is_to_be_had_there(hatchway: Hatchway, busy: str) -> None:
    done = hatchway("logs", busy, "--host-id", "another-machine")

    assert done.returncode == 1
    assert f"agent {busy} runs on host m-" in done.stderr


def test_a_busy_agent_is_released_only_with_now(hatchway: Hatchway, busy: str) -> None:
    asked = hatchway("release", busy)
    still_there = busy in hatchway.agents()
    now = hatchway("release", "--now", busy)
    hatchway.until_gone(busy)

    assert (asked.returncode, still_there, now.returncode) == (0, True, 0)
    assert hatchway.object("show", busy)["outcome"]["end_reason"] == "released"


def test_a_cancelled_agent_is_torn_down(hatchway: Hatchway, busy: str) -> None:
    done = hatchway.object("cancel", busy)
    hatchway.until_gone(busy)

    assert done == {"agent_id": busy, "workflow_id": done["workflow_id"], "done": True}
    assert hatchway.until_shown(busy, workflow_status="canceled")


def test_an_agent_that_nobody_tears_down_is_not_forgotten(hatchway: Hatchway, busy: str) -> None:
    refused = hatchway("forget", busy, "--json")
    still_there = busy in hatchway.agents()
    hatchway("cancel", busy)
    hatchway.until_gone(busy)

    assert (refused.returncode, still_there) == (1, True)
    assert json.loads(refused.stderr)["error"] == "not_tearing_down"


@pytest.mark.parametrize("verb", ["release", "cancel", "forget"])
def test_an_agent_that_has_ended_cannot_be_told_anything(hatchway: Hatchway, verb: str) -> None:
    ended = hatchway.provision("quick", "--wait", "closed", job_id=job())

    by_agent = hatchway(verb, ended["agent_id"])
    by_workflow = hatchway(verb, ended["workflow_id"])

    assert (by_agent.returncode, by_workflow.returncode) == (1, 1)
    assert "has ended already" in by_agent.stderr
    assert "has ended already" in by_workflow.stderr


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("show", "scaler-" + "0" * 32),
        ("show", "provision/job/absent"),
        ("show", "x" * 2000),
        ("release", "scaler-" + "0" * 32),
        ("cancel", "provision/job/absent"),
        ("forget", "x" * 2000),
        ("logs", "scaler-" + "0" * 32),
        ("logs", "provision/job/absent"),
    ],
)
def test_a_name_that_nobody_has_is_said_to_be_unknown(hatchway: Hatchway, verb: str, name: str) -> None:
    done = hatchway(verb, name, "--json")

    assert done.returncode == 1
    assert json.loads(done.stderr)["error"] == "not_found"


def test_the_output_of_an_agent_is_gone_with_it_or_was_never_there(hatchway: Hatchway) -> None:
    ended_agent = hatchway.provision("quick", "--wait", "closed", job_id=job())["agent_id"]

    of_ended, of_unknown = hatchway("logs", ended_agent), hatchway("logs", "scaler-" + "0" * 32)

    assert (of_ended.returncode, of_unknown.returncode) == (1, 1)
    assert f"agent {ended_agent} has ended" in of_ended.stderr
    assert "misspelled" in of_unknown.stderr


def test_the_configuration_in_force_is_shown(hatchway: Hatchway) -> None:
    shown = hatchway.object("config", "show")

    assert shown["version"] == 1
    assert [scaler["name"] for scaler in shown["content"]["scalers"]] == ["quick", "failing", "long", "single"]
