"""Teardown that does not go through at once: rounds, the hand-over, hosts that nobody polls, and an operator's word."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from hatchway.client import ProvisionFailed
from hatchway.errors import DestroyError, ErrorType
from hatchway.model import (
    EndReason,
    ProvisionState,
    ScaleDownReason,
    TeardownFacts,
    TeardownRequest,
    TeardownState,
)
from hatchway.task_queues import CONTROL
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate, ScriptedBackend
from tests.support.stack import laptop
from tests.support.states import AT, let_go

S = ProvisionState
QUICK = laptop(stopGraceSeconds=0)


async def _at_work(lab: Lab, job_id: str = "job-1"):  # type: ignore[no-untyped-def]
    await lab.apply(QUICK)
    started = await lab.provision(job_id=job_id)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    return started


@pytest.mark.scenario("S04", "S05")
async def test_a_backend_that_is_away_is_asked_again_and_the_slot_is_held(lab: Lab) -> None:
    asked = 0

    async def away(agent_id: str) -> None:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise DestroyError("the engine answered 500")

    lab.backend.before_destroy = away
    started = await _at_work(lab)

    await lab.complete(started)
    await until(lambda: asked >= 2)
    held = await lab.slots.get(started.agent_id)
    outcome = await lab.outcome(started)

    assert held is not None
    assert held.closing
    assert outcome.teardown is TeardownState.CONFIRMED
    assert asked == 4
    await lab.nothing_left()


@pytest.mark.scenario("S04")
async def test_a_first_round_that_fails_hands_over_and_the_outcome_stands(lab: Lab) -> None:
    """The job is free to be offered again; the slot is held until the compute is gone."""
    broken = True

    async def away(agent_id: str) -> None:
        if broken:
            raise DestroyError("the engine answered 500")

    lab.backend.before_destroy = away
    started = await _at_work(lab)
    await lab.complete(started)

    outcome = await lab.outcome(started)

    assert outcome.teardown is TeardownState.PENDING
    assert outcome.end_reason is EndReason.COMPLETED
    teardown = lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}")
    assert (await teardown.describe()).status is WorkflowExecutionStatus.RUNNING
    row = await lab.slots.get(started.agent_id)
    assert row is not None
    assert row.closing
    broken = False
    assert (await teardown.result())["teardown"] == "confirmed"
    recorded = await lab.outcomes.get(started.agent_id)
    assert recorded is not None
    assert (recorded.end_reason, recorded.result) == ("completed", "succeeded")
    await lab.nothing_left()


@pytest.mark.scenario("S41")
async def test_a_claim_that_a_failing_teardown_quotes_stays_out_of_history(lab: Lab) -> None:
    """As a provisioner does that prints the machine's user data. Of the code itself only a hash is left by then."""
    claim = secrets.token_urlsafe(32)
    said, described = 0, Gate()

    async def quoting(agent_id: str) -> None:
        nonlocal said
        said += 1
        if said < 3:
            raise DestroyError(f"delete failed; user data was {claim}")
        await described(agent_id)

    lab.backend.before_destroy = quoting
    started = await _at_work(lab)

    await lab.complete(started)
    await described.reached.wait()
    pending = (await lab.handle(started).describe()).raw_description.SerializeToString()
    described.open()
    await lab.outcome(started)
    history = (await lab.handle(started).fetch_history()).to_json()

    assert b"delete failed" in pending
    assert claim.encode() not in pending
    assert claim not in history
    await lab.nothing_left()


async def test_a_host_that_is_gone_for_good_is_named_and_can_be_forgotten(lab: Lab) -> None:
    started = await _at_work(lab)
    await lab.stop_host("host-1")
    await lab.complete(started)

    outcome = await lab.outcome(started)

    assert outcome.teardown is TeardownState.PENDING
    teardown = lab.temporal.get_workflow_handle(f"teardown/{started.agent_id}")

    async def named() -> bool:
        return "nobody polls host host-1" in await _details(teardown)

    await until(named, patience=90)
    assert f"hatchway forget {started.agent_id}" in await _details(teardown)
    assert await lab.hatchway.forget(started.workflow_id, started.agent_id)
    assert (await teardown.result())["teardown"] == "pending"
    assert await lab.slots.get(started.agent_id) is None


async def test_a_job_whose_teardown_is_stuck_gets_a_new_agent_when_it_is_offered_again(lab: Lab) -> None:
    broken = True

    async def away(agent_id: str) -> None:
        if broken and agent_id == first.agent_id:
            raise DestroyError("the engine answered 500")

    first = await _at_work(lab)
    lab.backend.before_destroy = away
    await lab.exits(first)
    assert (await lab.failure(first)).error_type == ErrorType.AGENT_LOST

    second = await lab.provision(job_id="job-1")
    await lab.reaches(second, S.AWAITING_ADOPTION)

    assert {row.agent_id for row in await lab.slots.list()} == {first.agent_id, second.agent_id}
    await lab.adopt(second)
    await lab.complete(second)
    await lab.outcome(second)
    broken = False
    await lab.temporal.get_workflow_handle(f"teardown/{first.agent_id}").result()
    await lab.nothing_left()


async def test_no_stamp_means_no_teardown(lab: Lab) -> None:
    """A provision that ends before any host was stamped asks nobody to destroy anything."""
    await lab.stop_host("host-1")
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.SPAWNING)

    await lab.release(started)

    assert (await lab.failure(started)).error_type == ErrorType.RELEASED
    assert lab.cloud.log == []
    await lab.nothing_left()


@pytest.mark.scenario("S01")
async def test_a_retry_on_another_host_is_sent_to_the_host_of_the_effect(lab: Lab) -> None:
    """The first host dies between the effect and its reply; a second one polls the same scaler."""
    made = dead = False

    async def reply_lost(agent_id: str) -> None:
        nonlocal made
        made = True
        if not dead:  # also to the next attempt, where that comes before the host has ended
            raise RuntimeError("the reply is lost")

    lab.backend.after_create = reply_lost
    other = ScriptedBackend(lab.cloud, host="host-2")
    started = await lab.provision(job_id="job-1")
    await until(lambda: made)
    await lab.stop_host("host-1")
    dead = True
    lab.start_host(other)

    async def bound() -> bool:
        history = await lab.handle(started).fetch_history()
        return any("hatchway.host.host-1" in str(event) for event in history.events)

    await until(bound)
    lab.start_host(lab.backend, spawns=False)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.complete(started)
    await lab.outcome(started)

    assert lab.cloud.created(started.agent_id) == 1
    assert all(host == "host-1" for what, _, host in lab.cloud.log if what != "asked to destroy")
    await lab.nothing_left()


async def test_a_target_that_only_accepts_a_teardown_is_said_to_have_accepted(lab: Lab) -> None:
    lab.backend.accepts_only = True
    started = await _at_work(lab)
    await lab.complete(started)

    assert (await lab.outcome(started)).teardown is TeardownState.ACCEPTED
    await lab.nothing_left()


async def test_a_teardown_that_went_to_whoever_is_in_force_says_what_to_look_after(lab: Lab) -> None:
    """The row that named its targets was lost: nothing waits for that machine any more, so a person has to look."""
    lab.backend.accepts_only, lab.backend.doubt = True, "the row of it was lost: see that its machine is gone"
    started = await _at_work(lab)
    facts = await _facts(lab, started.agent_id)
    await lab.complete(started)
    outcome = await lab.outcome(started)
    left = await lab.provision(job_id="job-2")
    await lab.reaches(left, S.AWAITING_ADOPTION)
    teardown = await lab.temporal.start_workflow(
        "TeardownWorkflow", TeardownRequest(
            agent_id=left.agent_id, facts=facts, reason=ScaleDownReason.SHUTDOWN, end_reason=EndReason.OPERATOR
        ), id=f"teardown/{left.agent_id}", task_queue=CONTROL,
    )  # fmt: skip
    torn_down = await teardown.result()

    assert outcome.teardown is TeardownState.ACCEPTED
    assert torn_down["teardown"] == "accepted"
    for page in (await _details(lab.handle(started)), await _details(teardown)):
        assert "see that its machine is gone" in _todo(page)
        assert "Nothing" not in page
    await lab.hatchway.cancel(left.workflow_id)
    await lab.nothing_left()


def _todo(page: str) -> str:
    return page.partition("**What you can do:**")[2]


@pytest.mark.parametrize("call", ["close", "release"])
async def test_a_teardown_that_waits_for_the_database_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    owner = lab.adoption if call == "close" else lab.slots
    real, answers = getattr(owner, call), asyncio.Event()

    async def hangs(*args: Any, **more: Any) -> Any:
        await answers.wait()
        return await real(*args, **more)

    monkeypatch.setattr(owner, call, hangs)
    request = TeardownRequest(
        agent_id=started.agent_id, facts=await _facts(lab, started.agent_id), reason=ScaleDownReason.SHUTDOWN,
        end_reason=EndReason.OPERATOR,
    )  # fmt: skip
    teardown = await lab.temporal.start_workflow(
        "TeardownWorkflow", request, id=f"teardown/{started.agent_id}", task_queue=CONTROL
    )

    async def says_so() -> bool:
        return "**waits for** the database" in await _details(teardown)

    await until(says_so, what="a page that names the database")
    answers.set()

    assert (await teardown.result())["teardown"] == "confirmed"
    await lab.hatchway.cancel(started.workflow_id)
    await lab.nothing_left()


async def _facts(lab: Lab, agent_id: str) -> TeardownFacts:
    row = await lab.slots.get(agent_id)
    assert row is not None
    assert row.teardown_facts is not None
    return row.teardown_facts


async def _details(handle: object) -> str:
    """The current details, as the UI fetches them."""
    metadata = await handle.query("__temporal_workflow_metadata")  # type: ignore[attr-defined]
    return str(metadata.get("currentDetails", "")) if isinstance(metadata, dict) else str(metadata.current_details)


@pytest.mark.parametrize("state", [state for state in AT if state != "tearing-down"])
async def test_an_agent_that_is_forgotten_before_its_teardown_is_torn_down_all_the_same(lab: Lab, state: str) -> None:
    """The word is for compute that nobody can confirm gone. Remembered from earlier, it would leave a machine."""
    started = await AT[state](lab)

    await lab.forget(started)
    await lab.status(started)
    await lab.hatchway.cancel(started.workflow_id)
    await let_go(lab, started)

    with pytest.raises(ProvisionFailed) as ended:
        await lab.outcome(started)
    assert ended.value.cancelled
    await lab.nothing_left()
