from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hatchway.errors import StoreUnreachable
from hatchway.gateway import heartbeats
from hatchway.gateway.heartbeats import HeartbeatBatches
from hatchway.store.presence import Beat, BeatAnswer


def ok(agent_id: str) -> BeatAnswer:
    return BeatAnswer(Beat.OK, None, False, agent_id, None)


class Statement:
    """Stands for the one SQL statement: holds each batch until the test lets it go."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, str]]] = []
        self.running = 0
        self.failure: Exception | None = None
        self.go = asyncio.Event()

    async def __call__(self, agents: Sequence[tuple[str, str]]) -> dict[str, BeatAnswer]:
        self.running += 1
        assert self.running == 1, "two statements at once"
        self.batches.append(list(agents))
        await self.go.wait()
        self.running -= 1
        if self.failure:
            raise self.failure
        return {agent_id: ok(agent_id) for agent_id, _ in agents}


async def started(statement: Statement, count: int) -> None:
    async with asyncio.timeout(10):
        while len(statement.batches) < count:
            await asyncio.sleep(0)


async def test_what_comes_while_a_statement_runs_goes_into_one_more() -> None:
    statement = Statement()
    batches = HeartbeatBatches(statement)
    first = asyncio.create_task(batches.beat("a0", "r"))
    await started(statement, 1)

    others = [asyncio.create_task(batches.beat(f"a{n}", "r")) for n in range(1, 200)]
    await asyncio.sleep(0)
    statement.go.set()
    answers = await asyncio.gather(first, *others)

    assert [len(b) for b in statement.batches] == [1, 199]
    assert [a.job_id for a in answers] == [f"a{n}" for n in range(200)]


async def test_a_statement_holds_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "MAX_BATCH", 50)
    statement = Statement()
    statement.go.set()
    batches = HeartbeatBatches(statement)

    await asyncio.gather(*(batches.beat(f"a{n}", "r") for n in range(120)))

    assert [len(b) for b in statement.batches] == [50, 50, 20]


async def test_two_processes_of_one_agent_are_asked_apart_and_one_process_once() -> None:
    statement = Statement()
    statement.go.set()
    batches = HeartbeatBatches(statement)

    await asyncio.gather(*(batches.beat("a", r) for r in ("r1", "r2", "r1")))

    assert statement.batches == [[("a", "r1")], [("a", "r2")]]


async def test_a_failure_reaches_every_caller_of_its_batch_and_the_next_batch_is_new() -> None:
    statement = Statement()
    statement.failure = StoreUnreachable("away")
    statement.go.set()
    batches = HeartbeatBatches(statement)

    failed = await asyncio.gather(*(batches.beat(f"a{n}", "r") for n in range(3)), return_exceptions=True)
    statement.failure = None

    assert [type(f) for f in failed] == [StoreUnreachable] * 3
    assert (await batches.beat("a0", "r")).answer is Beat.OK


async def test_a_caller_that_hangs_up_takes_no_answer_from_the_others() -> None:
    statement = Statement()
    batches = HeartbeatBatches(statement)
    leaver, stayer = (asyncio.create_task(batches.beat("a", "r")) for _ in range(2))
    await started(statement, 1)

    leaver.cancel()
    statement.go.set()

    assert (await stayer).answer is Beat.OK
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_an_agent_that_a_statement_left_out_hears_it_and_its_neighbours_are_answered() -> None:
    """By a database function of another release, say: nobody may wait for ever, and the next batch is written."""

    async def forgets_b(agents: Sequence[tuple[str, str]]) -> dict[str, BeatAnswer]:
        return {agent_id: ok(agent_id) for agent_id, _ in agents if agent_id != "b"}

    batches = HeartbeatBatches(forgets_b)

    async with asyncio.timeout(10):
        first, left_out, last = await asyncio.gather(
            *(batches.beat(agent_id, "r") for agent_id in "abc"), return_exceptions=True
        )
        later = await batches.beat("d", "r")

    assert isinstance(first, BeatAnswer)
    assert isinstance(last, BeatAnswer)
    assert "no answer for agent b" in str(left_out)
    assert later.job_id == "d"
