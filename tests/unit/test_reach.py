"""Which backends a worker has reached, and which of them answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from hatchway import reach
from hatchway.backends.base import Backend
from hatchway.config.schema import Scaler
from hatchway.errors import HatchwayError
from hatchway.model import ComputeExit
from hatchway.reach import Reach, WorkerRefused, backend_key
from tests.support.namespaces import until


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ASK_EVERY", 0.001)
    monkeypatch.setattr(reach, "RECONNECT_EVERY", 0.001)


class Engine:
    """A backend that is asked whether it is there, and nothing else."""

    def __init__(self, host_id: str) -> None:
        self.host_id = host_id
        self.trouble: Exception | None = None
        self.closed = False

    async def ping(self, limit: timedelta) -> None:
        if self.trouble:
            raise self.trouble

    async def exits(self) -> AsyncIterator[ComputeExit]:
        await asyncio.Event().wait()
        yield ComputeExit(agent_id="never", log_tail="")

    async def close(self) -> None:
        self.closed = True


def _scaler(name: str, host: str | None = None, hosts: Sequence[str] = ()) -> Scaler:
    return Scaler.model_validate(
        {
            "hosts": list(hosts),
            "name": name, "type": "container", "maxAgents": 1, "host": host, "networkIsolation": False,
            "labelSets": [{"labels": [name], "image": "x"}],
        }
    )  # fmt: skip


async def _nobody(_: ComputeExit) -> None:
    return


def _reach(make: Callable[[Scaler], Awaitable[Any]], *, named: bool = False) -> Reach:
    return Reach(cast("Callable[[Scaler], Awaitable[Backend]]", make), _nobody, machine="m-1", named=named)


@pytest.mark.parametrize(
    "trouble", [HatchwayError("the engine is away"), ValueError("half an answer")], ids=["away", "an SDK's own error"]
)
async def test_an_engine_that_goes_away_is_known_to_be_and_to_be_back(trouble: Exception) -> None:
    engine, scaler = Engine("docker-1"), _scaler("one")

    async def make(_: Scaler) -> Engine:
        return engine

    reached = _reach(make)
    await until(lambda: reached.of(scaler) is not None)
    await until(lambda: reached.answers(scaler))

    engine.trouble = trouble
    await until(lambda: not reached.answers(scaler))
    served, failed = reached.of(scaler), [task for task in reached.tasks if task.done()]
    engine.trouble = None
    await until(lambda: reached.answers(scaler))
    reached.leave()
    await reached.close()

    assert served is not None, "its queues stay polled, for when it comes back"
    assert failed == []
    assert engine.closed


async def test_whatever_comes_instead_of_an_engine_is_asked_again_and_ends_no_worker() -> None:
    engine, scaler, answers = Engine("docker-1"), _scaler("one"), [KeyError("ID"), AttributeError("no engine's page")]

    async def make(_: Scaler) -> Engine:
        if answers:
            raise answers.pop()
        return engine

    reached = _reach(make)
    await until(lambda: reached.of(scaler) is not None)
    failed = [task for task in reached.tasks if task.done()]
    reached.leave()
    await reached.close()

    assert (answers, failed) == ([], [])


async def test_an_engine_that_nothing_was_asked_of_yet_does_not_count_as_there() -> None:
    """With a host id that was given, a backend is made without its engine's help."""
    engine, scaler = Engine("docker-1"), _scaler("one")
    engine.trouble = HatchwayError("it has never been there")

    async def make(_: Scaler) -> Engine:
        return engine

    reached = _reach(make, named=True)
    await until(lambda: reached.of(scaler) is not None)

    assert not reached.answers(scaler)
    reached.leave()


async def test_what_nobody_asks_for_any_more_is_not_tried_any_more() -> None:
    tried: list[str] = []

    async def make(scaler: Scaler) -> Engine:
        tried.append(scaler.name)
        raise HatchwayError("no such engine")

    reached = _reach(make)
    scaler = _scaler("gone", "tcp://192.0.2.1:2375")
    await until(lambda: reached.of(scaler) is None and len(tried) > 2)
    (connecting,) = reached.tasks

    reached.give_up_all_but([backend_key(_scaler("other"))])

    await asyncio.wait([connecting])
    assert connecting.cancelled()
    assert reached.tasks == []


async def test_a_second_engine_under_a_given_host_id_is_refused_whenever_it_looks() -> None:
    """Also when the second one was reached while nobody waited for it."""

    async def make(_: Scaler) -> Engine:
        return Engine("given")

    reached = _reach(make, named=True)
    for scaler in (one := _scaler("one")), (two := _scaler("two", "tcp://192.0.2.1:2375")):
        reached.of(scaler)
    await until(lambda: reached.of(one) is not None)
    await until(lambda: [task for task in reached.tasks if task.done()])

    (failed,) = [task for task in reached.tasks if task.done()]
    assert isinstance(failed.exception(), WorkerRefused)
    assert reached.of(two) is None
    reached.leave()


class Identified(Engine):
    """An engine with an id of its own under a host id that was given, which it may be too busy to say."""

    def __init__(self, engine: str) -> None:
        super().__init__("given")
        self.engine = engine
        self.silent = False

    async def engine_id(self) -> str:
        if self.silent:
            raise HatchwayError("the engine does not say who it is")
        return self.engine


async def test_two_addresses_of_one_engine_are_one_engine_under_a_given_host_id() -> None:
    made: list[Identified] = []

    async def make(_: Scaler) -> Identified:
        made.append(Identified("engine-1"))
        return made[-1]

    reached = _reach(make, named=True)
    one, two = _scaler("one", "unix:///run/docker.sock"), _scaler("two", "unix:///var/run/docker.sock")
    await until(lambda: reached.of(one) is not None)

    await until(lambda: reached.of(two) is not None, patience=10)

    assert reached.of(two) is reached.of(one)
    assert [engine.closed for engine in made] == [False, True]
    reached.leave()


async def test_a_second_engine_under_a_given_host_id_is_refused_alone_and_says_why() -> None:
    engines = {"one": Identified("engine-1"), "two": Identified("engine-2")}

    async def make(scaler: Scaler) -> Identified:
        return engines[scaler.name]

    reached = _reach(make, named=True)
    one, two = _scaler("one"), _scaler("two", "tcp://192.0.2.1:2375")
    await until(lambda: reached.of(one) is not None)
    reached.of(two)
    await until(lambda: [task for task in reached.tasks if task.done()])
    (ended,) = [task for task in reached.tasks if task.done()]

    refused = reached.refuses(ended)

    assert refused
    assert "engine-2, and engine-1 bears that name" in str(reached.why_refused(two))
    assert (reached.of(two), [task for task in reached.tasks if task.done()]) == (None, [])
    assert cast("Any", reached.of(one)) is engines["one"]
    assert engines["two"].closed
    reached.give_up_all_but([backend_key(one)])
    assert reached.why_refused(two) is None, "a configuration that comes back to it is tried anew"
    reached.leave()


async def test_a_second_engine_that_does_not_say_who_it_is_is_not_served_until_it_does() -> None:
    engines = {"one": Identified("engine-1"), "two": Identified("engine-1")}
    engines["two"].silent = True
    asked = 0

    async def make(scaler: Scaler) -> Identified:
        nonlocal asked
        asked += scaler.name == "two"
        return engines[scaler.name]

    reached = _reach(make, named=True)
    one, two = _scaler("one"), _scaler("two", "tcp://192.0.2.1:2375")
    await until(lambda: reached.of(one) is not None)
    await until(lambda: reached.of(two) is not None or asked > 3)
    before = reached.of(two)
    engines["two"].silent = False
    await until(lambda: reached.of(two) is not None)

    assert before is None
    assert cast("Any", reached.of(two)) is engines["one"]
    reached.leave()


async def test_what_fails_otherwise_is_not_taken_for_a_refusal() -> None:
    async def fails() -> None:
        raise WorkerRefused("of something else")

    reached = _reach(cast("Callable[[Scaler], Awaitable[Any]]", fails))
    task = asyncio.create_task(fails())
    await asyncio.wait([task])

    assert not reached.refuses(task)


async def test_an_engine_of_other_hosts_does_not_take_the_name_of_a_worker_that_was_given_it() -> None:
    async def make(scaler: Scaler) -> Identified:
        return Identified(f"engine of {scaler.name}")

    reached = _reach(make, named=True)
    others, own = _scaler("others", hosts=["m-2"]), _scaler("own", "tcp://192.0.2.1:2375", hosts=["m-1", "given"])
    of_others = reached.of(others)
    await until(lambda: reached.of(own) is not None, patience=10)

    assert (of_others, reached.of(others), reached.why_refused(own)) == (None, None, None)
    assert reached.answers(others), "nothing is missing here"
    assert (reached.serves(others), reached.serves(own)) == (False, True), "and nothing is served by that"
    reached.leave()
