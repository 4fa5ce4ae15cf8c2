"""Condemning is one guarded write: whoever has been heard of meanwhile lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hatchway.model import EndReason
from hatchway.reaping import Rule, Windows, judge
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.outcomes import Outcomes
from hatchway.store.pool import Database
from hatchway.store.presence import Beat, Presence
from hatchway.store.reaping import Reaping, Sentence
from hatchway.store.slots import Slots
from tests.integration.reap.facts import aged, gateway, silent
from tests.integration.store.factory import SCALER, adopted, held, minted, set_caps

W = Windows()
MANY = 300
CONNECTIONS = 20
"""Of the pool that `db` is."""


async def sentences(db: Database) -> list[Sentence]:
    """What a pass that reads now comes to, of those whose workflows are taken for gone."""
    found = []
    async for page in Reaping(db).pages(W, walk=100):
        for one in page.found:
            judgement = judge(one.candidate, W, page.now)
            end = judgement.end or EndReason.ADOPTION_TIMEOUT
            rule = judgement.rule if judgement.end else Rule.ABANDONED
            found.append(Sentence(one.candidate, rule, end))
    return found


@pytest.fixture
async def fleet(db: Database) -> list[str]:
    """Busy agents that have been silent for an hour, and a gateway that was there all the time."""
    await set_caps(db, {SCALER: None})
    await gateway(db)
    agents = [f"a{n:03}" for n in range(MANY)]
    for agent in agents:
        await adopted(db, agent, f"job-of-{agent}")
    await silent(db, 3600)
    return agents


@pytest.fixture
async def one(db: Database) -> str:
    await set_caps(db, {SCALER: None})
    await gateway(db)
    await adopted(db, "a1", "job-1")
    await silent(db, 3600)
    return "a1"


async def test_a_silent_agent_is_condemned_once_and_hears_that_it_should_stop(db: Database, one: str) -> None:
    (sentence,) = await sentences(db)
    await minted(db, one, "claim-1")

    (row,) = await Reaping(db).condemn([sentence], W)
    again = await Reaping(db).condemn([sentence], W)

    assert (row.state.value, row.end_reason, again) == ("closing", "heartbeat-timeout", [])
    outcome = await Outcomes(db).get(one)
    assert outcome is not None
    assert (outcome.condemned_reason, outcome.job_id) == ("heartbeat-timeout", "job-1")
    assert outcome.condemned_at is not None
    assert outcome.decided_at is None  # that is decided when the compute is gone
    assert await db.fetch_value("select count(*) from scaler_pending_claims") == 0
    assert (await Presence(db).beat("gateway-1", [(one, "reg-1")]))[one].answer is Beat.STOP


async def _beats(db: Database) -> None:
    await Presence(db).beat("gateway-2", [("a1", "reg-1")])


async def _registers_elsewhere(db: Database) -> None:
    assert isinstance(await Adoption(db).adopt("a1", "gateway-2", "reg-1"), Adopted)


async def _the_gateway_goes(db: Database) -> None:
    await gateway(db, silent_for=46)


async def _the_gateway_has_come_back(db: Database) -> None:
    await gateway(db, alive_for=100)


async def _it_is_closed(db: Database) -> None:
    await Adoption(db).close("a1", "completed", only_unadopted=False)


async def _it_is_asked_to_drain(db: Database) -> None:
    await Slots(db).request_drain("a1")


async def _it_is_released(db: Database) -> None:
    await Slots(db).release("a1", "completed")


@pytest.mark.parametrize(
    "meanwhile",
    [
        _beats, _registers_elsewhere, _the_gateway_goes, _the_gateway_has_come_back, _it_is_closed,
        _it_is_asked_to_drain, _it_is_released,
    ],
)  # fmt: skip
async def test_what_has_changed_since_the_read_saves(
    db: Database, one: str, meanwhile: Callable[[Database], Awaitable[None]]
) -> None:
    found = await sentences(db)
    await meanwhile(db)

    assert len(found) == 1
    assert await Reaping(db).condemn(found, W) == []
    condemned = await db.fetch_value("select count(*) from scaler_provision_outcomes where condemned_at is not null")
    assert condemned == 0


async def test_an_agent_that_registers_after_the_read_is_not_condemned_for_not_having(db: Database) -> None:
    await set_caps(db, {SCALER: None})
    await held(db, "a1", "job-1")
    await aged(db, "deadline_at", 3600, "a1")
    found = await sentences(db)
    await Adoption(db).adopt("a1", "gateway-1", "reg-1")

    assert len(found) == 1
    assert await Reaping(db).condemn(found, W) == []


@pytest.mark.scenario("S23")
async def test_nobody_is_condemned_whose_heartbeat_is_being_written(
    db: Database, database_url: str, fleet: list[str]
) -> None:
    """The version of their rows is still as it was read: by that alone, all of them were condemned."""
    found = await sentences(db)
    beat = {"instance_id": "gateway-1", "agents": [[agent, "reg-1"] for agent in fleet]}
    async with await psycopg.AsyncConnection.connect(database_url) as writer:
        await writer.execute("select hatchway_beat(%s)", [Jsonb(beat)])
        condemned = [await Reaping(db).condemn(found[n : n + 50], W) for n in range(0, MANY, 50)]
        await writer.commit()

    assert len(found) == MANY
    assert condemned == [[]] * 6
    assert await Reaping(db).condemn(found, W) == []


@pytest.mark.scenario("S23")
async def test_of_a_heartbeat_and_a_condemnation_one_wins(db: Database, fleet: list[str]) -> None:
    found = {sentence.candidate.agent_id: sentence for sentence in await sentences(db)}

    async def condemn(agent: str) -> bool:
        return bool(await Reaping(db).condemn([found[agent]], W))

    async def beat(agent: str) -> bool:
        return (await Presence(db).beat("gateway-1", [(agent, "reg-1")]))[agent].answer is Beat.OK

    both = [call for n, agent in enumerate(fleet) for call in ((condemn, beat) if n % 2 else (beat, condemn))]
    racing = asyncio.Semaphore(CONNECTIONS)  # more at once would wait in the pool, where nothing races, and give up

    async def raced(call: Callable[[str], Awaitable[bool]], agent: str) -> bool:
        async with racing:
            return await call(agent)

    answers = await asyncio.gather(*(raced(call, fleet[n // 2]) for n, call in enumerate(both)))

    lives = {fleet[n // 2] for n, call in enumerate(both) if call is beat and answers[n]}
    dies = {fleet[n // 2] for n, call in enumerate(both) if call is condemn and answers[n]}
    assert lives & dies == set()
    closing = {row.agent_id for row in await Slots(db).list() if row.closing}
    assert closing == dies


@pytest.mark.scenario("S23")
async def test_three_hundred_agents_that_beat_all_the_while_outlive_every_condemnation(
    db: Database, fleet: list[str]
) -> None:
    """A reaper that read before a long pause, and goes on as if nothing had happened."""
    found = await sentences(db)
    presence = Presence(db)
    done = asyncio.Event()
    agents = [(agent, "reg-1") for agent in fleet]

    async def beat() -> int:
        stopped = 0
        while not done.is_set():
            answers = await presence.beat("gateway-1", agents)
            stopped += sum(answer.answer is not Beat.OK for answer in answers.values())
        return stopped

    await presence.beat("gateway-1", agents)
    beating = asyncio.create_task(beat())
    condemned = [
        row
        for _ in range(5)
        for rows in await asyncio.gather(*(Reaping(db).condemn(found[n : n + 10], W) for n in range(0, MANY, 10)))
        for row in rows
    ]
    done.set()

    assert (len(found), condemned, await beating) == (MANY, [], 0)
