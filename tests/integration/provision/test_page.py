"""What an operator reads in the Temporal UI: the current details, the summaries and the search attributes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from temporalio.api.enums.v1 import EventType

from hatchway import search_attributes
from hatchway.client import ProvisionFailed, Started
from hatchway.errors import DestroyError
from hatchway.model import EndReason, ProvisionState
from tests.support.corpus import metadata
from tests.support.endings import ENDS
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.scripted import Gate
from tests.support.stack import laptop
from tests.support.states import AT, let_go

S = ProvisionState
QUICK = laptop(stopGraceSeconds=0)


class Broken(str):
    """A value whose provider fails while it is read."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise OSError("the provider is away")


async def _page(lab: Lab, workflow_id: str) -> str:
    """The current details, as the UI fetches them; at most 2 kB."""
    answer = await metadata(lab.temporal, workflow_id, "")
    details = str(json.loads(answer).get("currentDetails", ""))
    assert len(details.encode()) <= 2000
    return details


def _since(page: str) -> datetime:
    found = re.search(r"- \*\*since\*\* (\S+ \S+) UTC", page)
    assert found, page
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


def _waits_for(page: str) -> str:
    return page.partition("- **waits for** ")[2].partition("\n")[0]


def _advice(page: str) -> str:
    return page.partition("**What you can do:** ")[2]


async def _reserving(lab: Lab, exits: AsyncExitStack) -> Started:
    """Postgres lets nobody read the configuration, until `exits` is closed."""
    connection = await exits.enter_async_context(await psycopg.AsyncConnection.connect(str(lab.db._pool.conninfo)))
    await connection.execute("lock table scaler_capacity, scaler_config_versions in access exclusive mode")
    started = await lab.provision(job_id="job-1")
    await lab.reaches(started, S.RESERVING)
    return started


async def _resolving(lab: Lab, exits: AsyncExitStack) -> Started:
    """The secret's provider fails, until `exits` is closed."""
    exits.callback(lab.environ.update, {"HATCHWAY_SECRET_TOKEN": "not-a-secret"})
    lab.environ["HATCHWAY_SECRET_TOKEN"] = Broken("x")
    await lab.apply({
        **QUICK, "secrets": {"contexts": {"vault": {"type": "env", "registries": ["reg.local"]}}},
    })  # fmt: skip
    started = await lab.provision(
        job_id="job-1", container={"image": "reg.local/app", "auth": {"tokenSecret": "vault:token"}}
    )
    await lab.reaches(started, S.RESOLVING)
    return started


def _at(state: str) -> Callable[[Lab, AsyncExitStack], Awaitable[Started]]:
    return lambda lab, _: AT[state](lab)


STATES: dict[str, tuple[Callable[[Lab, AsyncExitStack], Awaitable[Started]], str, str]] = {
    "reserving": (_reserving, "a slot", "Postgres does not answer"),
    "queued": (_at("queued"), "a slot: scaler:laptop is full: 1 of 1 agents in use, 1 wanted", "hatchway cancel"),
    "resolving": (_resolving, "the registry credentials of the job", "provider"),
    "spawning": (_at("spawning"), "the backend", "hatchway cancel"),
    "awaiting-adoption": (_at("awaiting-adoption"), "the agent to register", "hatchway logs"),
    "active": (_at("active"), "the agent's work", "hatchway release"),
    "tearing-down": (_at("tearing-down"), "the backend to confirm that the compute is gone", "hatchway forget"),
}
"""State -> how it is reached, for whom it waits, and what one can do."""


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("state", STATES)
async def test_each_state_says_what_since_when_for_whom_and_what_one_can_do(lab: Lab, state: str) -> None:
    reach, waits_for, advice = STATES[state]
    exits = AsyncExitStack()
    started = await reach(lab, exits)

    page = await _page(lab, started.workflow_id)

    status = await lab.status(started)
    assert page.startswith(f"### {state}\n")
    assert _since(page) == status.since.replace(microsecond=0)
    assert _waits_for(page) == waits_for == status.waiting_for
    assert advice in _advice(page)
    assert started.agent_id in page
    assert ("- **deadline** " in page) == (status.deadline_at is not None)
    if state == "queued":
        assert "- **place in the line** 1" in page
    if state == "tearing-down":
        said = page.split("```")[1].split()
        assert " ".join(said).endswith("ended with exit code 1 before it registered; its last output: boom")
    await exits.aclose()
    await let_go(lab, started)
    await lab.hatchway.cancel(started.workflow_id)
    with pytest.raises(ProvisionFailed):
        await lab.outcome(started)


@pytest.mark.parametrize("end", ["completed", "spawn-failed-exited", "cancelled-at-active", "no-matching-scaler"])
async def test_a_provision_that_has_ended_says_how_and_why(lab: Lab, end: str) -> None:
    bring_about, _ = ENDS[end]
    started = await bring_about(lab)

    page = await _page(lab, started.workflow_id)

    heading, said, advice = {
        "completed": ("closed: completed, its job succeeded", "", "Nothing: it has ended."),
        "spawn-failed-exited": ("failed: SpawnFailed", "cannot reach the gateway", "offer the job again"),
        "cancelled-at-active": ("cancelled", "", "Nothing: it has ended."),
        "no-matching-scaler": ("failed: NoMatchingScaler", "gpu", "Correct the job's labels"),
    }[end]
    assert page.startswith(f"### {heading}\n")
    assert said in page
    assert advice in _advice(page)
    assert ("**last error**" in page) == bool(said)


@pytest.mark.usefixtures("unhurried")
async def test_an_operators_name_and_an_agents_output_cannot_become_markdown(lab: Lab) -> None:
    hostile = "```\n# Pwned <img src=x onerror=alert(1)> [click](https://evil.test)"
    started = await AT["active"](lab)
    await lab.hatchway.release(started.workflow_id, started.agent_id, reason=EndReason.DRAINED, by=hostile)

    async def asked() -> str | None:
        page = await _page(lab, started.workflow_id)
        return page if "was asked for by" in page else None

    drained = await until(asked)
    lab.backend.before_destroy = gate = Gate()
    await lab.exits(started, tail=hostile)
    await gate.reached.wait()
    second = await lab.provision(job_id="job-2")
    await lab.reaches(second, S.AWAITING_ADOPTION)
    await lab.exits(second, tail=hostile)
    await lab.reaches(second, S.TEARING_DOWN)
    printed = await _page(lab, second.workflow_id)

    assert "\n# Pwned" not in drained
    assert re.search(r"^- \*\*waits for\*\* `[^`\n]*Pwned[^`\n]*`$", drained, re.M)
    assert printed.count("```") == 2
    assert "# Pwned" in printed.split("```")[1]
    assert _advice(printed).startswith("Start a worker on that host")
    gate.open()
    await lab.nothing_left()


async def test_within_a_minute_a_spawn_says_that_nobody_polls(lab: Lab) -> None:
    await lab.stop_host("host-1")
    started = await lab.provision(job_id="job-1")

    async def named() -> str | None:
        page = await _page(lab, started.workflow_id)
        return page if "nobody polls" in page else None

    page = await until(named, patience=120)

    assert await _until_a_time_out_was_seen_to(lab, started) < timedelta(seconds=66)
    assert _waits_for(page) == "a worker: nobody polls hatchway.spawn.laptop, or all who do are busy"
    assert "start one that reaches this scaler's backend" in _advice(page)
    lab.start_host(lab.backend)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    assert "nobody polls" not in await _page(lab, started.workflow_id)
    await lab.hatchway.cancel(started.workflow_id)
    await lab.nothing_left()


async def _until_a_time_out_was_seen_to(lab: Lab, started: Started) -> timedelta:
    """From the start to the end of the first workflow task after it, by the clock of the server: then the page is new.

    How soon after that this test has looked is no matter of the page.
    """
    events = [event async for event in lab.handle(started).fetch_history_events()]
    timed_out = next(e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT)
    seen_to = next(e for e in events[timed_out:] if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
    return seen_to.event_time.ToDatetime() - events[0].event_time.ToDatetime()


async def test_a_stuck_teardown_names_the_host_the_error_and_the_way_out(lab: Lab) -> None:
    async def away(agent_id: str) -> None:
        raise DestroyError("the engine answered 500 ``` # Pwned")

    await lab.apply(QUICK)
    started = await AT["active"](lab)
    lab.backend.before_destroy = away
    await lab.complete(started)
    outcome = await lab.outcome(started)
    teardown = f"teardown/{started.agent_id}"

    async def failed() -> str | None:
        page = await _page(lab, teardown)  # until then it may have waited for the database
        return page if "the engine answered 500" in page else None

    page = await until(failed)

    assert outcome.end_reason is EndReason.COMPLETED
    assert page.startswith("### tearing-down\n")
    assert datetime.now(UTC) - _since(page) < timedelta(minutes=2)
    assert "on host `host-1`" in page
    assert "**last error**" in page
    assert "the engine answered 500" in page.split("```")[1]
    assert page.count("```") == 2
    assert f"`hatchway forget {started.agent_id}`" in _advice(page)
    closed = await _page(lab, started.workflow_id)
    assert closed.startswith("### closed: completed, its job succeeded\n")
    assert f"`{teardown}`" in _advice(closed)
    await _found(lab, 'HatchwayReason = "completed" AND HatchwayState = "tearing-down"', teardown)
    assert await lab.hatchway.forget(started.workflow_id, started.agent_id, by="`ann`\n# Pwned")
    await lab.temporal.get_workflow_handle(teardown).result()
    assert "forgotten by `'ann' # Pwned`" in await _page(lab, teardown)
    lab.cloud.live.clear()
    await lab.nothing_left()


async def test_a_teardown_that_is_no_completions_is_found_by_its_reason(lab: Lab) -> None:
    started = await AT["tearing-down"](lab)

    await _found(lab, 'HatchwayReason = "compute-exited" AND HatchwayState = "tearing-down"', started.workflow_id)

    await let_go(lab, started)
    await lab.failure(started)
    await lab.nothing_left()


@pytest.mark.parametrize("state", ["queued", "awaiting-adoption", "active"])
async def test_a_provision_is_found_by_what_people_filter_by(lab: Lab, state: str) -> None:
    started = await AT[state](lab)
    if state == "active":
        started = await _with_a_run(lab)
        await _found(lab, 'HatchwayRunId = "run-7"', started.workflow_id)
        await _found(lab, f'HatchwayState = "active" AND HatchwayAgentId = "{started.agent_id}"', started.workflow_id)
    else:
        await _found(lab, f'HatchwayState = "{state}" AND HatchwayAgentId = "{started.agent_id}"', started.workflow_id)
    if state != "queued":  # no scaler has given it a slot yet
        await _found(lab, f'HatchwayScaler = "laptop" AND HatchwayAgentId = "{started.agent_id}"', started.workflow_id)
    described = await lab.handle(started).describe()
    assert described.typed_search_attributes[search_attributes.STATE] == state
    assert described.typed_search_attributes[search_attributes.AGENT_ID] == started.agent_id


async def _with_a_run(lab: Lab) -> Started:
    started = await lab.provision(job_id="job-7", run_id="run-7")
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await lab.adopt(started)
    await lab.reaches(started, S.ACTIVE)
    return started


async def _found(lab: Lab, query: str, workflow_id: str) -> None:
    """Visibility is written a moment after the history."""

    async def found() -> bool:
        return [w.id async for w in lab.temporal.list_workflows(query)] == [workflow_id]

    await until(found, what=query)


NEEDS_A_SUMMARY = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
}


@pytest.mark.parametrize(
    "end",
    ["completed-after-waiting", "completed-handed-over", "completed-drained", "completed-store-away",
     "completed-with-container-auth", "lifetime-exceeded", "adoption-timeout"],
)  # fmt: skip
async def test_every_activity_and_every_timer_has_a_summary(lab: Lab, end: str) -> None:
    bring_about, _ = ENDS[end]
    await bring_about(lab)

    seen, silent = set(), []
    async for listed in lab.temporal.list_workflows():
        async for event in lab.temporal.get_workflow_handle(listed.id, run_id=listed.run_id).fetch_history_events():
            if event.event_type in NEEDS_A_SUMMARY:
                seen.add(event.event_type)
                if not event.user_metadata.summary.data:
                    silent.append(f"{listed.id} event {event.event_id} {EventType.Name(event.event_type)}")

    assert silent == []
    assert {EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED} <= seen
