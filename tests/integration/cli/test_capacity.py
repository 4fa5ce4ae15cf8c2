"""`status`, `drain` and `doctor`: what an operator sees of caps and line, and can do about them."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from hatchway.dev.stack import Stack
from hatchway.store.pool import Database
from tests.integration.cli.conftest import Hatchway, until


def _job() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def _scaler(hatchway: Hatchway, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in hatchway.object("status")["scalers"] if s["scaler"] == name)
    return found


def _until(condition: Callable[[], Any]) -> Any:
    return until(condition, "a condition of this test")


@pytest.fixture
def crowded(hatchway: Hatchway) -> Iterator[tuple[str, str]]:
    """The one slot of `single` is taken, and a job waits for it: their agents."""
    holder = hatchway.provision("single", job_id=_job())["agent_id"]
    waiting = hatchway.provision("single", "--wait", "none", job_id=_job())["agent_id"]
    _until(lambda: hatchway.object("status")["waiting"] == 1)
    yield holder, waiting
    hatchway("cancel", waiting)
    hatchway("cancel", holder)
    hatchway.until_gone(holder)
    _until(lambda: hatchway.object("status")["waiting"] == 0)


def test_status_shows_use_of_every_cap_and_who_waits_for_what(hatchway: Hatchway, crowded: tuple[str, str]) -> None:
    _, waiting = crowded

    said = hatchway.object("status")
    text = hatchway("status").stdout
    single = next(s for s in said["scalers"] if s["scaler"] == "single")
    (waiter,) = said["line"]

    assert single["agents"] == {"used": 1, "cap": 1}
    assert (single["waiting"], single["states"]) == (1, {"active": 1})
    assert [shared["scope"] for shared in said["shared"]] == ["global"]
    assert (waiter["agent_id"], waiter["place"], waiter["scalers"]) == (waiting, 1, ["single"])
    assert waiter["cause"] == "scaler:single is full: 1 of 1 agents in use, 1 wanted"
    assert waiter["cause"] in hatchway.object("show", waiting)["waiting_for"]
    assert waiting in text
    assert "1 of 1" in text
    assert "scaler:single is full" in text


def test_status_without_a_line_says_so(hatchway: Hatchway) -> None:
    assert "nobody waits" in hatchway("status").stdout


def test_a_drained_scaler_takes_nobody_until_the_drain_is_ended(hatchway: Hatchway) -> None:
    drained = hatchway("drain", "single", "--by", "ann")
    again = hatchway("drain", "single")
    waiting = hatchway.provision("single", "--wait", "none", job_id=_job())["agent_id"]
    _until(lambda: hatchway.object("status")["waiting"] == 1)
    shown, cause = _scaler(hatchway, "single"), hatchway.object("status")["line"][0]["cause"]
    text = hatchway("status").stdout

    ended = hatchway.object("drain", "single", "--undo")
    _until(lambda: hatchway.agents().get(waiting, {}).get("state") == "active")

    assert drained.returncode == again.returncode == 0
    assert "draining already" in again.stdout
    assert (shown["draining"], shown["drained_by"]) == (True, "ann")
    assert cause == "scaler:single is draining"
    assert "by ann" in text
    assert ended == {"scaler": "single", "draining": False, "changed": True}
    assert _scaler(hatchway, "single")["draining"] is False
    hatchway("cancel", waiting)
    hatchway.until_gone(waiting)


def test_a_busy_agent_of_a_drained_scaler_finishes_and_a_waiter_reads_why_it_waits(
    hatchway: Hatchway, crowded: tuple[str, str]
) -> None:
    holder, waiting = crowded

    hatchway("drain", "single")
    _until(lambda: "is draining" in hatchway.object("show", waiting)["waiting_for"])
    state = hatchway.agents()[holder]["state"]
    hatchway("drain", "single", "--undo")

    assert state == "active"


def test_a_scaler_that_is_not_there_cannot_be_drained(hatchway: Hatchway) -> None:
    done = hatchway("drain", "nowhere", "--json")

    assert done.returncode == 1
    said = json.loads(done.stderr)
    assert said["error"] == "unknown_scaler"
    assert "single" in said["message"]


def test_a_doctor_finds_nothing_wrong_with_a_stack_that_is_well(hatchway: Hatchway) -> None:
    said = hatchway.object("doctor")

    assert said == {
        "ok": True,
        "checked": [
            "namespace",
            "counters",
            "grants",
            "waiters",
            "provisions",
            "workflows",
            "reaper",
            "schedules",
            "queues",
        ],
        "findings": [],
    }


@asynccontextmanager
async def _left_alone(stack: Stack) -> AsyncIterator[None]:
    """Nobody writes meanwhile: the sweep of that minute would mend what is broken here before anybody looks."""
    async with await psycopg.AsyncConnection.connect(stack.database_url) as other:
        await other.execute("lock table scaler_spawning_agents, scaler_waiters, scaler_capacity in share mode")
        yield


@pytest.mark.parametrize(
    ("check", "break_it", "mend_it"),
    [
        (
            "counters",
            "update scaler_capacity set agents = agents + 7 where scope = 'scaler:single'",
            "update scaler_capacity set agents = agents - 7 where scope = 'scaler:single'",
        ),
        (
            "grants",
            "insert into scaler_spawning_agents (agent_id, scaler_name, state, spawned_at, workflow_id) "
            "values ('scaler-late', 'single', 'granted', now() - interval '1 hour', 'provision/adhoc/late')",
            "delete from scaler_spawning_agents where agent_id = 'scaler-late'",
        ),
        (
            "waiters",
            "insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, "
            "spawn) values ('scaler-ghost', 1, 'single', 5, 1, 0, 0, 'provision/adhoc/ghost', '{}')",
            "delete from scaler_waiters where agent_id = 'scaler-ghost'",
        ),
        (
            "queues",
            "insert into scaler_capacity (scope, scaler_name) values ('scaler:unserved', 'unserved')",
            "delete from scaler_capacity where scope = 'scaler:unserved'",
        ),
    ],
)
async def test_a_doctor_names_what_is_wrong_where_and_what_to_do(
    hatchway: Hatchway, stack: Stack, check: str, break_it: str, mend_it: str
) -> None:
    async with Database.open(stack.database_url, max_size=1) as db:
        await db.fetch_all(break_it)
        try:
            async with _left_alone(stack):
                done = hatchway("doctor", "--json")
                text = hatchway("doctor")
        finally:
            await db.fetch_all(mend_it)

    assert (done.returncode, text.returncode) == (1, 1)
    findings = [f for f in json.loads(done.stdout)["findings"] if f["check"] == check]
    assert findings
    assert all(finding["what"] and finding["where"] and finding["todo"] for finding in findings)
    assert findings[0]["where"] in text.stdout


async def test_a_doctor_sees_a_paused_and_a_missing_schedule_and_setup_mends_only_the_missing(
    hatchway: Hatchway, stack: Stack
) -> None:
    sweep = (await stack.connect()).get_schedule_handle("hatchway/sweep")
    await sweep.pause(note="maintenance until noon")
    paused = hatchway("doctor", "--json")
    hatchway("setup")
    still_paused = (await sweep.describe()).schedule.state.paused
    await sweep.delete()
    missing = hatchway("doctor", "--json")
    made = hatchway.object("setup")["schedules"]

    (paused_finding,) = json.loads(paused.stdout)["findings"]
    (missing_finding,) = json.loads(missing.stdout)["findings"]
    assert "maintenance until noon" in paused_finding["what"]
    assert still_paused
    assert missing_finding["todo"] == "Run `hatchway setup`."
    assert made == {"hatchway/sweep": "created", "hatchway/purge": "unchanged"}
    assert hatchway.object("doctor")["ok"]
