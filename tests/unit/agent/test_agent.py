"""The reference agent as a process, against gateways that lose, delay and refuse."""

from __future__ import annotations

import ast
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from hatchway import agent
from tests.support.fake_gateway import (
    COMPLETE,
    HEARTBEAT,
    REDEEM,
    REGISTER,
    TOKEN,
    Answer,
    FakeGateway,
    error,
    refused_url,
)
from tests.unit.agent.process import CLAIM, SOURCE, Launch, finish, patched, shell


def _imports() -> set[str]:
    """The top-level modules that the file imports. Fails on grammar that Python 3.8 does not have."""
    return {
        (node.module or "" if isinstance(node, ast.ImportFrom) else name.name).split(".")[0]
        for node in ast.walk(ast.parse(SOURCE.read_text(), feature_version=(3, 8)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }


def test_the_file_is_python_3_8_and_imports_the_standard_library_only() -> None:
    assert _imports() <= sys.stdlib_module_names


def test_no_neighbour_of_the_file_shadows_what_it_imports() -> None:
    """Run as a file, Python looks for every import in the agent's own directory first."""
    neighbours = {path.stem for path in SOURCE.parent.iterdir()}

    assert _imports().isdisjoint(neighbours)


def test_the_file_carries_the_version_of_the_package() -> None:
    assert version("hatchway") == agent.VERSION


@pytest.mark.parametrize(
    ("script", "code", "result"),
    [("exit 0", 0, "succeeded"), ("exit 3", 3, "failed"), ("kill -9 $$", 137, "failed")],
)
def test_the_command_s_end_is_reported_and_becomes_the_agent_s(
    gateway: FakeGateway, launch: Launch, script: str, code: int, result: str
) -> None:
    returncode, _ = finish(launch(*shell(script)))

    assert returncode == code
    assert [p for p in gateway.paths() if p != HEARTBEAT] == [REDEEM, REGISTER, COMPLETE]
    completed = gateway.of(COMPLETE)[0]
    assert (completed.body["result"], completed.body["exit_code"]) == (result, code)
    assert completed.body["registration_id"] == gateway.of(REGISTER)[0].body["registration_id"]
    assert {c.authorization for c in gateway.calls if c.path != REDEEM} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(("command", "code"), [("/nowhere/at/all", 127), ("/", 126)])
def test_a_command_that_cannot_start_is_a_failed_job(
    gateway: FakeGateway, launch: Launch, command: str, code: int
) -> None:
    returncode, _ = finish(launch(command))

    assert returncode == code
    assert gateway.of(COMPLETE)[0].body["exit_code"] == code


def test_the_command_sees_neither_claim_nor_token_and_nothing_prints_them(launch: Launch) -> None:
    command = json.dumps(list(shell("env; tr '\\0' '\\n' < /proc/self/environ; exit 0")))

    code, output = finish(launch(environment={"HATCHWAY_AGENT_COMMAND": command, "MINE": "kept"}))

    assert code == 0
    assert "MINE=kept" in output
    assert "HATCHWAY_JOB_ID=job-1" in output
    assert "KICI_AGENT_ID=scaler-1" in output
    for secret in (CLAIM, TOKEN, "KICI_SCALER_CLAIM_CODE", "HATCHWAY_AGENT_COMMAND"):
        assert secret not in output


@pytest.mark.parametrize("path", [REDEEM, REGISTER, COMPLETE])
@pytest.mark.parametrize(
    "fault",
    [
        Answer(cut=True),
        error(500, "internal"),
        error(503, "unavailable", **{"Retry-After": "0"}),
        error(429, "rate_limited", **{"Retry-After": "0.1"}),
        Answer(404, "<html>no backend</html>"),
        Answer(401, "<html>who are you?</html>"),
        Answer(403, "<html>the proxy forbids it</html>"),
        Answer(302, "", {"Location": "http://127.0.0.1:1/"}),
        Answer(200, "no json"),
        Answer(200, "[1]"),
        Answer(200, ""),
    ],
    ids=["lost", "500", "503", "429", "404", "proxy-401", "proxy-403", "redirect", "text", "list", "empty"],
)
def test_a_call_that_got_no_answer_is_made_again_the_same(
    gateway: FakeGateway, launch: Launch, path: str, fault: Answer
) -> None:
    gateway.script[path].append(fault)

    code, _ = finish(launch(*shell("exit 0")))

    assert code == 0
    first, second = gateway.of(path)
    assert first == second


def test_an_answer_that_drips_in_is_cut_off(gateway: FakeGateway, launch: Launch) -> None:
    gateway.script[REDEEM].append(Answer(body={"agent_id": "x" * 400, "token": "y"}, drip_s=0.1))

    code, _ = finish(launch(*shell("exit 0"), prelude=patched("CALL_S = 10.0", "CALL_S = 1.0")))

    assert code == 0
    assert len(gateway.of(REDEEM)) == 2


@pytest.mark.parametrize("first", ["refused", "503"])
def test_another_gateway_takes_over(gateway: FakeGateway, launch: Launch, first: str) -> None:
    broken = FakeGateway()
    for path in (REDEEM, REGISTER, HEARTBEAT, COMPLETE):
        broken.always[path] = error(503, "unavailable")

    code, output = finish(
        launch(*shell("exit 0"), url=f"{refused_url() if first == 'refused' else broken.url}, {gateway.url}/")
    )
    broken.stop()

    assert code == 0, output
    assert len(gateway.of(COMPLETE)) == 1
    # It stays with the one that answered.
    assert len(broken.calls) == (0 if first == "refused" else 1)


def test_a_gateway_that_dies_under_a_job_is_replaced(gateway: FakeGateway, launch: Launch, tmp_path: Path) -> None:
    second = FakeGateway()
    go = tmp_path / "go"
    running = launch(*shell(f"until [ -e {go} ]; do sleep 0.02; done"), url=f"{gateway.url},{second.url}")
    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 2)

    gateway.stop()
    second.wait_until(lambda: len(second.of(HEARTBEAT)) >= 2)
    go.touch()

    assert finish(running)[0] == 0
    assert len(second.of(COMPLETE)) == 1
    second.stop()


@pytest.mark.parametrize(
    ("path", "answer", "code"),
    [
        (REDEEM, error(403, "claim_refused"), 77),
        (REDEEM, error(422, "invalid_request"), 77),
        (REGISTER, error(409, "adopted"), 77),
        (REGISTER, error(410, "tearing_down"), 0),
        (REGISTER, error(401, "unauthorized"), 0),
    ],
)
def test_a_refusal_ends_the_agent_before_any_command(
    gateway: FakeGateway, launch: Launch, tmp_path: Path, path: str, answer: Answer, code: int
) -> None:
    gateway.always[path] = answer

    returncode, output = finish(launch(*shell(f"touch {tmp_path}/ran")))

    assert returncode == code
    assert "the fake gateway says" in output
    assert len(gateway.of(path)) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("status", [401, 410])
def test_a_heartbeat_that_hears_stop_stops_the_job_and_reports_nothing(
    gateway: FakeGateway, launch: Launch, tmp_path: Path, status: int
) -> None:
    gateway.script[HEARTBEAT].extend([gateway.always[HEARTBEAT], error(status, "stop")])

    code, _ = finish(launch(*shell(f"trap 'touch {tmp_path}/stopped; exit 0' TERM; while :; do sleep 0.02; done")))

    assert code == 143
    assert (tmp_path / "stopped").exists()
    assert gateway.of(COMPLETE) == []


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(gateway: FakeGateway, launch: Launch) -> None:
    gateway.script[HEARTBEAT].append(error(410, "tearing_down"))
    script = "trap '' TERM; while :; do sleep 0.02; done"

    code, output = finish(launch(*shell(script), prelude=patched("STOP_GRACE_S = 30.0", "STOP_GRACE_S = 0.3")))

    assert code == 143
    assert "killing it" in output


@pytest.mark.parametrize(
    "fault",
    [Answer(401, "<html>"), Answer(cut=True), error(500, "internal"), error(409, "not_registered")],
    ids=["proxy-401", "lost", "500", "409"],
)
def test_a_heartbeat_that_fails_stops_no_job(
    gateway: FakeGateway, launch: Launch, tmp_path: Path, fault: Answer
) -> None:
    gateway.script[HEARTBEAT].append(fault)
    go = tmp_path / "go"
    running = launch(*shell(f"until [ -e {go} ]; do sleep 0.02; done"))

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    go.touch()

    assert finish(running)[0] == 0
    assert gateway.of(COMPLETE)[0].body["result"] == "succeeded"


def test_a_drained_agent_finishes_its_job_first(gateway: FakeGateway, launch: Launch, tmp_path: Path) -> None:
    gateway.always[HEARTBEAT] = Answer(body={"drain": True, "next_in_s": 0.05})
    go = tmp_path / "go"
    running = launch(*shell(f"until [ -e {go} ]; do sleep 0.02; done"))

    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    go.touch()

    assert finish(running)[0] == 0
    assert len(gateway.of(COMPLETE)) == 1


def test_an_agent_without_a_command_serves_until_drained(gateway: FakeGateway, launch: Launch) -> None:
    running = launch()
    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    assert running.process.poll() is None

    gateway.always[HEARTBEAT] = Answer(body={"drain": True, "next_in_s": 0.05})

    assert finish(running)[0] == 0
    assert gateway.of(COMPLETE)[0].body["result"] == "succeeded"
    assert {c.body["busy"] for c in gateway.of(HEARTBEAT)} == {False}


def _warm(gateway: FakeGateway) -> None:
    """The gateway's agent has no job yet."""
    registered = gateway.always[REGISTER].body
    assert isinstance(registered, dict)
    registered |= {"job_id": None, "warm": True}


def test_a_warm_agent_runs_its_command_when_a_job_comes(gateway: FakeGateway, launch: Launch, tmp_path: Path) -> None:
    _warm(gateway)
    running = launch(*shell(f'echo "$HATCHWAY_JOB_ID $HATCHWAY_RUN_ID" >> {tmp_path}/ran'))
    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 3)
    assert not (tmp_path / "ran").exists()

    job = {"job_id": "job-7", "run_id": "run-7"}
    gateway.always[HEARTBEAT] = Answer(body={"drain": False, "next_in_s": 0.05, "job": job})

    code, _ = finish(running)
    assert code == 0
    assert (tmp_path / "ran").read_text() == "job-7 run-7\n"
    assert [call.body["result"] for call in gateway.of(COMPLETE)] == ["succeeded"]


def test_a_warm_agent_that_hears_of_its_job_and_of_a_drain_at_once_does_its_job(
    gateway: FakeGateway, launch: Launch, tmp_path: Path
) -> None:
    _warm(gateway)
    gateway.always[HEARTBEAT] = Answer(body={"drain": True, "next_in_s": 0.05, "job": {"job_id": "job-7"}})

    code, _ = finish(launch(*shell(f"touch {tmp_path}/ran; exit 4")))

    assert code == 4
    assert (tmp_path / "ran").exists()
    assert [call.body["exit_code"] for call in gateway.of(COMPLETE)] == [4]


@pytest.mark.parametrize("status", [401, 410])
def test_a_warm_agent_that_is_told_to_stop_reports_nothing(gateway: FakeGateway, launch: Launch, status: int) -> None:
    _warm(gateway)
    running = launch(*shell("echo never"))
    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 1)

    gateway.always[HEARTBEAT] = error(status, "tearing_down")

    assert finish(running)[0] == 0
    assert gateway.of(COMPLETE) == []
