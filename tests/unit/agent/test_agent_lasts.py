"""What neither ends the reference agent's heartbeats nor loses its job's result: whatever may go wrong in a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_gateway import COMPLETE, HEARTBEAT, REDEEM, REGISTER, TOKEN, Answer, FakeGateway
from tests.unit.agent.process import Launch, finish, shell

NO_THREADS = """
import os, threading
_start = threading.Thread.start

def start(thread):
    if os.path.exists(FULL):
        raise RuntimeError("can't start new thread")  # in Python's own words, at the limit of processes
    _start(thread)

threading.Thread.start = start
"""


def test_a_job_that_leaves_no_room_for_a_thread_costs_neither_heartbeats_nor_its_result(
    gateway: FakeGateway, launch: Launch, tmp_path: Path
) -> None:
    full, go = tmp_path / "full", tmp_path / "go"
    running = launch(
        *shell(f"touch {full}; until [ -e {go} ]; do sleep 0.02; done"),
        prelude=NO_THREADS.replace("FULL", repr(str(full))),
    )
    gateway.wait_until(full.exists)
    before = len(gateway.of(HEARTBEAT))

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= before + 3)
    go.touch()

    code, output = finish(running)
    assert code == 0, output
    assert gateway.of(COMPLETE)[0].body["result"] == "succeeded"


ONCE = """
import http.client
_request, _left = http.client.HTTPConnection.request, [True]

def request(connection, method, url, *arguments):
    if url == PATH and _left:
        _left.pop()
        raise ERROR
    _request(connection, method, url, *arguments)

http.client.HTTPConnection.request = request
"""


@pytest.mark.parametrize("path", [REDEEM, REGISTER, HEARTBEAT, COMPLETE])
@pytest.mark.parametrize(
    "error",
    ["MemoryError()", "RuntimeError('unforeseen')", "UnicodeError('label too long')", f"ValueError('Bearer {TOKEN}')"],
    ids=["memory", "thread", "host-name", "token"],
)
def test_a_call_that_fails_in_a_way_that_nobody_foresaw_is_made_again(
    gateway: FakeGateway, launch: Launch, tmp_path: Path, path: str, error: str
) -> None:
    go = tmp_path / "go"
    running = launch(
        *shell(f"until [ -e {go} ]; do sleep 0.02; done"),
        prelude=ONCE.replace("PATH", repr(path)).replace("ERROR", error),
    )

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    go.touch()

    code, output = finish(running)
    assert code == 0, output
    assert len(gateway.of(COMPLETE)) == 1
    assert error.partition("(")[0] in output
    assert TOKEN not in output


@pytest.mark.parametrize("path", [REDEEM, REGISTER, HEARTBEAT, COMPLETE])
def test_an_answer_that_is_nested_too_deep_to_be_read_is_asked_for_again(
    gateway: FakeGateway, launch: Launch, tmp_path: Path, path: str
) -> None:
    go = tmp_path / "go"
    gateway.script[path].append(Answer(200, "[" * 100_000))
    running = launch(*shell(f"until [ -e {go} ]; do sleep 0.02; done"))

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    go.touch()

    code, output = finish(running)
    assert code == 0, output
    assert len(gateway.of(path)) >= 2


def test_a_waiting_time_that_no_number_can_hold_is_none(gateway: FakeGateway, launch: Launch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    gateway.script[HEARTBEAT].append(Answer(200, '{"next_in_s": 1' + "0" * 400 + "}"))
    running = launch(*shell(f"until [ -e {go} ]; do sleep 0.02; done"))

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    go.touch()

    assert finish(running)[0] == 0


def test_a_command_that_nobody_could_wait_for_is_not_started(
    gateway: FakeGateway, launch: Launch, tmp_path: Path
) -> None:
    no_job_thread = NO_THREADS.replace("os.path.exists(FULL)", "thread.name == 'job'")

    code, output = finish(launch(*shell(f"touch {tmp_path}/ran"), prelude=no_job_thread))

    assert code == 126, output
    assert gateway.of(COMPLETE)[0].body == {
        "registration_id": gateway.of(REGISTER)[0].body["registration_id"], "result": "failed", "exit_code": 126
    }  # fmt: skip
    assert not (tmp_path / "ran").exists()
