"""Register, heartbeat and complete, on the real workflows."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from temporalio.client import WorkflowExecutionStatus

from hatchway.model import EndReason, ProvisionState
from tests.support.door import Agent, Door, OpenDoor, redeemed, refusal, registered
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate, straight_on

UNKNOWN = "y" * 43


@pytest.fixture
async def teardown_gate(lab: Lab) -> AsyncIterator[Gate]:
    """Holds every teardown before it touches the compute, until the test ends."""
    gate = Gate()
    lab.backend.before_destroy = gate
    yield gate
    lab.backend.before_destroy = straight_on
    gate.open()


async def adopter(lab: Lab, agent: Agent) -> str | None:
    row = await lab.slots.get(agent.id)
    return row.adopted_by if row else None


async def test_an_agent_lives_from_claim_to_closed_provision(lab: Lab, door: Door) -> None:
    agent = await redeemed(lab, door, job_id="straight-1", run_id="run-1")

    spec = (await door.register(agent.token)).json()
    beat = await door.heartbeat(agent.token)
    done = await door.complete(agent.token)

    assert {"linux", "kici:scaler:laptop"} <= set(spec.pop("labels"))
    assert spec == {
        "agent_id": agent.id, "scaler": "laptop", "mandatory_labels": [], "job_id": "straight-1", "run_id": "run-1",
        "role": None, "warm": False, "heartbeat_interval_s": 30, "heartbeat_timeout_s": 90,
    }  # fmt: skip
    assert beat.json() == {"drain": False, "next_in_s": 30, "job": {"job_id": "straight-1", "run_id": "run-1"}}
    assert (done.status_code, done.json()) == (200, {"result": "succeeded"})
    assert (await lab.outcome(agent.started)).end_reason is EndReason.COMPLETED


async def test_the_same_process_may_register_again_at_any_gateway(lab: Lab, open_door: OpenDoor) -> None:
    first, second = await open_door(instance_id="gateway-a"), await open_door(instance_id="gateway-b")
    agent = await registered(lab, first)
    assert await adopter(lab, agent) == "gateway-a"

    there = await second.register(agent.token)
    assert await adopter(lab, agent) == "gateway-b"
    back = [await first.register(agent.token) for _ in range(2)]

    assert [a.status_code for a in (there, *back)] == [200] * 3
    assert there.json() == back[0].json()
    assert await adopter(lab, agent) == "gateway-a"


@pytest.mark.parametrize(
    ("agent_silent", "gateway_silent", "status"), [(False, False, 409), (True, False, 409), (True, True, 200)]
)
async def test_another_process_is_let_in_only_after_agent_and_gateway_fell_silent(
    lab: Lab, open_door: OpenDoor, agent_silent: bool, gateway_silent: bool, status: int
) -> None:
    first, second = await open_door(instance_id="gateway-c"), await open_door()
    agent = await registered(lab, first)
    if agent_silent:
        aged = "update scaler_agent_presence set last_seen_at = now() - interval '50 s' where agent_id = %s returning 1"
        assert await lab.db.fetch_value(aged, [agent.id]) == 1
    if gateway_silent:
        await first.stop()
        aged = "update scaler_instances set last_seen_at = now() - interval '50 s' where instance_id = %s returning 1"
        assert await lab.db.fetch_value(aged, ["gateway-c"]) == 1

    answer = await second.register(agent.token, "process-2")

    assert answer.status_code == status
    if status == 409:
        assert refusal(answer) == (409, "adopted")
        assert (await second.heartbeat(agent.token)).status_code == 200
    else:
        assert refusal(await second.heartbeat(agent.token)) == (410, "adopted")
        assert refusal(await second.complete(agent.token)) == (410, "adopted")


async def test_a_token_acts_for_its_own_agent_only(lab: Lab, door: Door) -> None:
    mine, theirs = await redeemed(lab, door), await redeemed(lab, door)

    spec = await door.register(mine.token)

    assert spec.json()["agent_id"] == mine.id
    assert await adopter(lab, theirs) is None
    assert refusal(await door.heartbeat(theirs.token)) == (409, "not_registered")


@pytest.mark.parametrize("call", ["register", "heartbeat", "complete"])
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        f"Bearer {UNKNOWN}",
        f"Basic {UNKNOWN}",
        UNKNOWN,
        f"Bearer {'z' * 5000}",
        "Bearer ü",
    ],
    ids=["none", "empty", "no-token", "unknown", "basic", "bare", "long", "not-ascii"],
)
async def test_a_request_without_a_known_token_is_401(door: Door, call: str, header: str | None) -> None:
    body = {"registration_id": "process-1", "busy": True, "result": "succeeded", "exit_code": 0}
    headers = [] if header is None else [(b"Authorization", header.encode())]

    answer = await door.http.post(f"{door.url}/v1/agents/{call}", json=body, headers=headers)

    assert refusal(answer) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_a_token_that_was_not_used_in_time_is_unknown(lab: Lab, door: Door) -> None:
    agent = await redeemed(lab, door)
    aged = "update scaler_agent_tokens set expires_at = now() - interval '1 s' where agent_id = %s returning 1"
    assert await lab.db.fetch_value(aged, [agent.id]) == 1

    assert refusal(await door.register(agent.token)) == (401, "unauthorized")


@pytest.mark.parametrize("adopted", [True, False])
async def test_once_the_teardown_has_begun_the_agent_hears_410_and_after_release_401(
    lab: Lab, door: Door, teardown_gate: Gate, adopted: bool
) -> None:
    agent = await (registered if adopted else redeemed)(lab, door)

    await lab.release(agent.started, now=True)
    await teardown_gate.reached.wait()
    during = [await door.register(agent.token), await door.heartbeat(agent.token)]
    teardown_gate.open()
    await until(lambda: _row_is_gone(lab, agent), what="the release")
    after = [await door.register(agent.token), await door.heartbeat(agent.token), await door.complete(agent.token)]

    assert [refusal(a) for a in during] == [(410, "tearing_down")] * 2
    assert [refusal(a) for a in after] == [(401, "unauthorized")] * 3


async def test_a_completion_that_races_with_a_teardown_is_kept(lab: Lab, door: Door, teardown_gate: Gate) -> None:
    agent = await registered(lab, door)
    await lab.exits(agent.started, code=0)
    await teardown_gate.reached.wait()

    answer = await door.complete(agent.token)
    teardown_gate.open()

    assert answer.status_code == 200
    assert (await lab.outcome(agent.started)).result == "succeeded"


async def test_the_drain_flag_reaches_the_agent(lab: Lab, door: Door) -> None:
    agent = await registered(lab, door, job_id="drained-1")

    await lab.release(agent.started, EndReason.DRAINED)

    async def drains() -> bool:
        return bool((await door.heartbeat(agent.token)).json()["drain"])

    await until(drains)
    assert (await lab.status(agent.started)).state is ProvisionState.ACTIVE


@pytest.mark.scenario("S25")
@pytest.mark.parametrize("order", list(itertools.permutations(["register", "heartbeat", "complete"])))
async def test_calls_out_of_order_and_doubled_end_in_the_same_state(
    lab: Lab, door: Door, order: tuple[str, ...]
) -> None:
    """Every call comes twice at once, and is repeated until it is accepted or the agent hears stop."""
    agent = await redeemed(lab, door)
    calls: dict[str, Callable[[str], Awaitable[httpx.Response]]] = {
        "register": door.register, "heartbeat": door.heartbeat, "complete": door.complete,
    }  # fmt: skip
    seen: set[int] = set()

    async def until_settled(name: str) -> None:
        while True:
            answers = await asyncio.gather(calls[name](agent.token), calls[name](agent.token))
            statuses = {a.status_code for a in answers}
            seen.update(statuses)
            if statuses & {200, 401, 410}:
                return

    first = asyncio.create_task(until_settled(order[0]))
    await asyncio.gather(first, *(until_settled(name) for name in order[1:]))

    outcome = await lab.outcome(agent.started)
    assert (outcome.end_reason, outcome.result) == (EndReason.COMPLETED, "succeeded")
    assert seen <= {200, 401, 409, 410}
    assert lab.cloud.created(agent.id) == 1


async def test_the_first_result_stays(lab: Lab, door: Door, teardown_gate: Gate) -> None:
    agent = await registered(lab, door)

    answers = [await door.complete(agent.token, "failed", exit_code=3), await door.complete(agent.token, "succeeded")]
    teardown_gate.open()

    assert [a.json() for a in answers] == [{"result": "failed"}] * 2
    assert (await lab.outcome(agent.started)).result == "failed"


async def test_a_completion_whose_workflow_is_gone_starts_the_teardown(lab: Lab, door: Door) -> None:
    agent = await registered(lab, door)
    await lab.handle(agent.started).terminate()

    answers = [await door.complete(agent.token) for _ in range(2)]

    assert answers[0].status_code == 200
    assert answers[1].status_code in (200, 401)
    await until(lambda: _row_is_gone(lab, agent), what="the teardown")
    teardown = await lab.temporal.get_workflow_handle(f"teardown/{agent.id}").describe()
    assert teardown.status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED)
    recorded = await lab.outcomes.get(agent.id)
    assert recorded is not None
    assert (recorded.end_reason, recorded.result) == ("completed", "succeeded")


async def test_an_agent_whose_workflow_was_terminated_is_told_to_stop(lab: Lab, door: Door) -> None:
    agent = await redeemed(lab, door)
    await lab.handle(agent.started).terminate()

    assert refusal(await door.register(agent.token)) == (410, "tearing_down")


async def test_an_old_agent_never_reaches_the_next_run_of_its_job(lab: Lab, door: Door) -> None:
    old = await redeemed(lab, door, job_id="again-1")
    await lab.handle(old.started).terminate()
    new = await redeemed(lab, door, job_id="again-1")
    assert (new.started.workflow_id, new.id != old.id) == (old.started.workflow_id, True)

    answer = await door.register(old.token)

    assert answer.status_code in (401, 410)
    assert await adopter(lab, new) is None
    assert (await door.register(new.token)).json()["agent_id"] == new.id


@pytest.mark.parametrize("before", ["register", "complete"])
async def test_a_reset_workflow_is_still_the_agent_s_own(lab: Lab, door: Door, before: str) -> None:
    agent = await (redeemed if before == "register" else registered)(lab, door)
    # Set back to before its spawn has answered, it would begin with its slot, where it knows of no agent yet.
    await lab.reaches(agent.started, ProvisionState.AWAITING_ADOPTION, ProvisionState.ACTIVE)
    agent.started = await lab.reset(agent.started)

    assert (await door.register(agent.token)).status_code == 200
    assert (await door.complete(agent.token)).status_code == 200
    assert (await lab.outcome(agent.started)).result == "succeeded"


@pytest.mark.scenario("S43", "S44")
async def test_a_two_hour_job_outlives_its_token_s_time_and_a_silent_minute(lab: Lab, door: Door) -> None:
    agent = await registered(lab, door)
    for aged in (
        """
        update scaler_agent_tokens
           set minted_at = minted_at - interval '2 h', expires_at = expires_at - interval '2 h'
         where agent_id = %s
        returning 1
        """,
        "update scaler_agent_presence set last_seen_at = now() - interval '60 s' where agent_id = %s returning 1",
    ):
        assert await lab.db.fetch_value(aged, [agent.id]) == 1

    beat = await door.heartbeat(agent.token)
    done = await door.complete(agent.token)

    assert (beat.status_code, done.status_code) == (200, 200)
    assert (await lab.outcome(agent.started)).result == "succeeded"


async def test_heartbeats_are_recorded_with_the_gateway_that_heard_them(lab: Lab, open_door: OpenDoor) -> None:
    first, second = await open_door(), await open_door(instance_id="gateway-heard")
    agents = [await registered(lab, first) for _ in range(8)]

    answers = await asyncio.gather(*(second.heartbeat(a.token) for a in agents for _ in range(5)))

    assert {a.status_code for a in answers} == {200}
    heard = await lab.db.fetch_all("select agent_id from scaler_agent_presence where instance_id = 'gateway-heard'")
    assert {row[0] for row in heard} == {a.id for a in agents}


async def test_a_gateway_is_an_instance_that_stays_alive(lab: Lab, open_door: OpenDoor) -> None:
    await open_door(instance_id="gateway-alive", instance_heartbeat=0.05)
    beats = "select last_seen_at from scaler_instances where instance_id = 'gateway-alive' and kind = 'gateway'"
    first = await until(lambda: lab.db.fetch_value(beats))

    async def again() -> bool:
        return bool(await lab.db.fetch_value(beats) > first)

    await until(again)


async def _row_is_gone(lab: Lab, agent: Agent) -> bool:
    return await lab.slots.get(agent.id) is None
