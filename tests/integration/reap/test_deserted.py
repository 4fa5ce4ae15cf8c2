"""A busy agent whose gateway is gone is given up only where it is known to have had somewhere else to go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.compute import Installation
from hatchway.client import Started
from hatchway.errors import ErrorType
from hatchway.model import EndReason, ProvisionState
from hatchway.reaping import Rule, Windows, judge
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from hatchway.store.reaping import Reaping, Sentence
from tests.integration.reap.facts import gateway, heard_at, reaped, redeemed, silent, state_of
from tests.integration.store.factory import SCALER, held, minted, set_caps
from tests.support.lab import Lab
from tests.support.stack import laptop

S = ProvisionState
W = Windows()


async def _busy(lab: Lab, job_id: str, at: str) -> Started:
    started = await lab.provision(job_id=job_id)
    await lab.reaches(started, S.AWAITING_ADOPTION)
    await redeemed(lab.db)
    await lab.adopt(started, instance=at)
    await lab.reaches(started, S.ACTIVE)
    return started


@pytest.fixture
async def usual(lab: Lab) -> Lab:
    """The windows that an installation has when it says nothing. One gateway is gone for good, another one lives."""
    await lab.apply(laptop())
    await gateway(lab.db, "gateway-a", silent_for=4000)
    await gateway(lab.db, "gateway-b")
    return lab


async def test_a_gateway_where_nobody_came_its_way_condemns_no_busy_agent_before_the_stranded_timeout(
    usual: Lab,
) -> None:
    """For all that is known, the other gateway has never been behind the agent's URL."""
    started = await _busy(usual, "job-1", "gateway-a")
    await silent(usual.db, 300)
    beyond_the_grace = await reaped(usual)
    state = await state_of(usual, started)
    await silent(usual.db, 1799)
    just_before = await reaped(usual)
    await silent(usual.db, 1800)

    stranded = await reaped(usual)

    assert (beyond_the_grace, state, just_before, stranded) == ({}, "active", {}, {"condemned": 1})
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    await usual.nothing_left()


async def test_a_gateway_where_another_agent_is_heard_by_the_same_url_was_somewhere_to_go(usual: Lab) -> None:
    started = await _busy(usual, "job-1", "gateway-a")
    other = await _busy(usual, "job-2", "gateway-b")
    await silent(usual.db, 120, started.agent_id)
    await heard_at(usual.db, "gateway-b", other, for_s=120)

    done = await reaped(usual)

    assert done == {"condemned": 1}
    assert (await usual.failure(started)).error_type == ErrorType.AGENT_LOST
    assert await state_of(usual, other) == "active"
    await usual.complete(other)
    await usual.outcome(other)
    await usual.nothing_left()


async def test_an_agent_is_known_by_the_url_that_the_worker_set_over_its_scalers(
    usual: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`KICI_AGENT_ENV_KICI_ORCHESTRATOR_URL`: by that one it comes."""

    def installation(**given: Any) -> Installation:
        return Installation(**{**given, "agent_env": {"KICI_ORCHESTRATOR_URL": "http://over-the-lan"}})

    await usual.stop_host(usual.backend.host_id)
    monkeypatch.setattr("tests.support.lab.Installation", installation)
    usual.start_host(usual.backend)

    started = await _busy(usual, "job-1", "gateway-b")

    assert usual.backend.specs[started.agent_id].env["KICI_ORCHESTRATOR_URL"] == "http://over-the-lan"
    assert await usual.db.fetch_all("select orchestrator_url from scaler_agent_tokens") == [("http://over-the-lan",)]
    await usual.complete(started)
    await usual.outcome(started)
    await usual.nothing_left()


# ── what is a sign of somewhere to go, and what is none ─────────────────────────────────────────────────────────────


@pytest.fixture
async def fleet(db: Database) -> Database:
    """`lost` is silent for the flap grace with its gateway; `other` is heard of at another one, for as long.

    A third gateway, where nobody is heard of, keeps the reaper seeing.
    """
    await set_caps(db, {SCALER: None})
    for name, silent_for in (("gateway-a", 4000), ("gateway-b", 0), ("gateway-c", 0)):
        await gateway(db, name, silent_for=silent_for)
    for agent, at in (("lost", "gateway-a"), ("other", "gateway-b")):
        await _comes(db, agent, at)
    await silent(db, 120, "lost")
    await db.fetch_all("update scaler_agent_presence set heard_since = now() - interval '120 s'")
    return db


async def _comes(db: Database, agent: str, at: str, host: str = "host-1") -> None:
    await held(db, agent, f"job-of-{agent}")
    await db.fetch_all(
        "update scaler_spawning_agents set host_id = %(host)s where agent_id = %(agent)s",
        {"host": host, "agent": agent},
    )
    assert await minted(db, agent, f"claim-of-{agent}")
    await redeemed(db)
    assert isinstance(await Adoption(db).adopt(agent, at, "reg-1"), Adopted)


async def _judged(db: Database, walk: int = 100) -> dict[str, tuple[Rule, Sentence]]:
    """By the store alone: Temporal has not been asked."""
    found = {}
    async for page in Reaping(db).pages(W, walk):
        for one in page.found:
            rule = judge(one.candidate, W, page.now).rule
            found[one.row.agent_id] = rule, Sentence(one.candidate, rule, EndReason.HEARTBEAT_TIMEOUT)
    return found


NO_SIGN = {
    "it came by another URL": "update scaler_agent_tokens set orchestrator_url = 'http://b' where agent_id = 'other'",
    "nobody knows by which URL it came":
        "update scaler_agent_tokens set orchestrator_url = null where agent_id = 'other'",
    "it came from another host": "update scaler_spawning_agents set host_id = 'host-2' where agent_id = 'other'",
    "it came for another scaler": "update scaler_spawning_agents set scaler_name = 's2' where agent_id = 'other'",
    "it is silent itself":
        "update scaler_agent_presence set last_seen_at = now() - interval '90 s' where agent_id = 'other'",
    "it came over a moment ago":
        "update scaler_agent_presence set heard_since = now() - interval '60 s' where agent_id = 'other'",
    "its gateway lives for less than the grace":
        "update scaler_instances set alive_since = now() - interval '60 s' where instance_id = 'gateway-b'",
    "its gateway is gone too":
        "update scaler_instances set last_seen_at = now() - interval '45 s' where instance_id = 'gateway-b'",
    "what it was heard at is no gateway": "update scaler_instances set kind = 'worker' where instance_id = 'gateway-b'",
    "it was heard at no time": "update scaler_agent_presence set last_seen_at = 'infinity' where agent_id = 'other'",
    "it is heard since no time":
        "update scaler_agent_presence set heard_since = '-infinity' where agent_id = 'other'",
    "it has ended": "delete from scaler_agent_presence where agent_id = 'other'",
}  # fmt: skip


async def test_another_agent_that_came_the_same_way_is_a_sign_on_every_page_of_a_pass(fleet: Database) -> None:
    await _comes(fleet, "lost-too", "gateway-a")
    await silent(fleet, 120, "lost-too")

    judged = await _judged(fleet, walk=1)
    condemned = await Reaping(fleet).condemn([sentence for _, sentence in judged.values()], W)

    assert {agent: rule for agent, (rule, _) in judged.items()} == {"lost": Rule.DESERTED, "lost-too": Rule.DESERTED}
    assert {row.agent_id for row in condemned} == {"lost", "lost-too"}


async def test_ways_that_one_statement_does_not_look_at_are_looked_at_by_the_next(
    fleet: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (2, 3):
        await _comes(fleet, f"lost-{n}", "gateway-a", f"host-{n}")
    await _comes(fleet, "other-3", "gateway-b", "host-3")
    await silent(fleet, 120, "lost-2", "lost-3")
    await fleet.fetch_all("update scaler_agent_presence set heard_since = now() - interval '120 s'")
    monkeypatch.setattr("hatchway.store.reaping.WAYS_AT_ONCE", 1)

    judged = await _judged(fleet)

    assert {agent: rule for agent, (rule, _) in judged.items()} == {
        "lost": Rule.DESERTED, "lost-2": Rule.NOWHERE, "lost-3": Rule.DESERTED,
    }  # fmt: skip


@pytest.mark.parametrize("statement", NO_SIGN.values(), ids=NO_SIGN.keys())
async def test_what_is_no_sign_of_somewhere_to_go_condemns_nobody(fleet: Database, statement: str) -> None:
    before = await _judged(fleet)
    await fleet.fetch_all(statement)

    since_the_read = await Reaping(fleet).condemn([before["lost"][1]], W)
    after = await _judged(fleet)

    assert (before["lost"][0], after["lost"][0]) == (Rule.DESERTED, Rule.NOWHERE)
    assert since_the_read == []


async def test_of_whom_no_url_is_known_nothing_is_a_sign(fleet: Database) -> None:
    await fleet.fetch_all("update scaler_agent_tokens set orchestrator_url = null")

    assert (await _judged(fleet))["lost"][0] is Rule.NOWHERE


async def test_a_gateway_that_comes_back_between_the_read_and_the_condemnation_saves_its_agents(
    fleet: Database,
) -> None:
    before = await _judged(fleet)
    await gateway(fleet, "gateway-a")

    assert before["lost"][0] is Rule.DESERTED
    assert await Reaping(fleet).condemn([before["lost"][1]], W) == []


# ── since when an agent is heard of ─────────────────────────────────────────────────────────────────────────────────


async def _heard_since(db: Database, agent: str) -> float:
    """Seconds."""
    since: float = await db.fetch_value(
        "select extract(epoch from now() - heard_since)::float8 from scaler_agent_presence where agent_id = %(a)s",
        {"a": agent},
    )
    return since


@pytest.mark.parametrize(
    ("heartbeat_s", "silence_s", "anew"), [(30, 40, False), (30, 61, True), (300, 560, False), (300, 601, True)]
)
async def test_an_agent_is_heard_of_anew_after_a_silence_of_two_heartbeats_at_whichever_gateway(
    fleet: Database, heartbeat_s: int, silence_s: int, anew: bool
) -> None:
    """It was on its way: where a URL begins to lead elsewhere, not all agents come there in the same moment."""
    await fleet.fetch_all("update scaler_agent_presence set heard_since = now() - interval '1 hour'")
    await silent(fleet, silence_s, "other")

    await Presence(fleet, agent_heartbeat=timedelta(seconds=heartbeat_s)).beat("gateway-c", [("other", "reg-1")])

    assert (await _heard_since(fleet, "other") < 60) is anew


async def test_an_agent_that_registers_again_is_heard_of_anew(fleet: Database) -> None:
    await Adoption(fleet).adopt("other", "gateway-c", "reg-1")

    assert await _heard_since(fleet, "other") < 60
