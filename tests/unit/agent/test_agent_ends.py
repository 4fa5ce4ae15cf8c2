"""How the reference agent ends: told to, in every one of its waits, and without any gateway."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.fake_gateway import (
    COMPLETE,
    HEARTBEAT,
    REDEEM,
    REGISTER,
    Answer,
    FakeGateway,
    error,
)
from tests.unit.agent.process import CLAIM, Launch, finish, shell


def test_sigterm_reaches_the_whole_job_and_its_end_is_not_called_a_result(
    gateway: FakeGateway, launch: Launch, tmp_path: Path
) -> None:
    trap = "trap 'touch $1; exit 0' TERM; touch $1-up; while :; do sleep 0.02; done"
    both = f'sh -c "$0" sh {tmp_path}/child & sh -c "$0" sh {tmp_path}/other & wait'
    running = launch("/bin/sh", "-c", both, trap)
    gateway.wait_until(lambda: (tmp_path / "child-up").exists() and (tmp_path / "other-up").exists())

    running.signal(signal.SIGTERM)

    assert finish(running)[0] == 143
    gateway.wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "other").exists())
    assert gateway.of(COMPLETE) == []


STRUCK_WHILE_IT_WAITS = """
import os, signal, threading

class Condition(threading.Condition):
    def wait(self, timeout=None):
        if threading.current_thread() is threading.main_thread() and timeout is not None and timeout WHICH:
            os.kill(os.getpid(), signal.SIGTERM)  # with the lock of what is waited for in its hands
        return super().wait(timeout)

threading.Condition = Condition
"""


def test_sigterm_in_the_very_moment_in_which_the_agent_turns_to_wait_for_its_job(launch: Launch) -> None:
    running = launch(*shell("sleep 600"), prelude=STRUCK_WHILE_IT_WAITS.replace("WHICH", "> 100"))

    assert finish(running)[0] == 143


def test_sigterm_in_the_very_moment_in_which_the_agent_turns_to_wait_for_a_gateway(
    gateway: FakeGateway, launch: Launch
) -> None:
    gateway.always[REGISTER] = error(503, "unavailable")

    running = launch(*shell("sleep 600"), prelude=STRUCK_WHILE_IT_WAITS.replace("WHICH", "< 1"))

    assert finish(running)[0] == 143


def test_without_any_gateway_the_job_is_stopped_and_the_agent_exits_75(
    gateway: FakeGateway, launch: Launch, tmp_path: Path
) -> None:
    script = f"trap 'touch {tmp_path}/stopped; exit 0' TERM; while :; do sleep 0.02; done"
    running = launch(*shell(script), environment={"HATCHWAY_STRANDED_SECONDS": "1"})
    gateway.wait_until(lambda: len(gateway.of(HEARTBEAT)) >= 2)

    gateway.stop()

    assert finish(running)[0] == 75
    assert (tmp_path / "stopped").exists()


@pytest.mark.parametrize("stage", [REDEEM, REGISTER, COMPLETE])
def test_every_wait_for_a_gateway_ends(gateway: FakeGateway, launch: Launch, stage: str) -> None:
    gateway.always[stage] = error(503, "unavailable")

    code, _ = finish(launch(*shell("exit 0"), environment={"HATCHWAY_STRANDED_SECONDS": "1"}))

    assert code == 75
    assert len(gateway.of(stage)) >= 2


@pytest.mark.parametrize("status", [401, 410])
def test_a_completion_that_hears_stop_is_done(gateway: FakeGateway, launch: Launch, status: int) -> None:
    gateway.script[COMPLETE].extend([Answer(cut=True), error(status, "stop")])

    assert finish(launch(*shell("exit 5")))[0] == 5


def test_sigterm_while_the_result_is_being_reported_does_not_lose_it(gateway: FakeGateway, launch: Launch) -> None:
    gateway.script[COMPLETE].extend([error(503, "unavailable")] * 2)
    running = launch(*shell("exit 0"))
    gateway.wait_until(lambda: bool(gateway.of(COMPLETE)))

    running.signal(signal.SIGTERM)

    assert finish(running)[0] == 0
    assert len(gateway.of(COMPLETE)) == 3


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"KICI_SCALER_CLAIM_CODE": ""}, "KICI_SCALER_CLAIM_CODE is not set"),
        ({"KICI_ORCHESTRATOR_URL": " , "}, "KICI_ORCHESTRATOR_URL is not set"),
        ({"KICI_ORCHESTRATOR_URL": "ftp://host"}, "http:// or https://"),
        ({"KICI_ORCHESTRATOR_URL": "http://user:marker-password@host"}, "must not hold a user or password"),
        ({"KICI_ORCHESTRATOR_URL": "http://host:99999"}, "port"),
        ({"HATCHWAY_AGENT_COMMAND": "make test"}, "JSON array"),
        ({"HATCHWAY_AGENT_COMMAND": "[1]"}, "JSON array"),
        ({"HATCHWAY_STRANDED_SECONDS": "-1"}, "HATCHWAY_STRANDED_SECONDS"),
        ({"HATCHWAY_STRANDED_SECONDS": "nan"}, "HATCHWAY_STRANDED_SECONDS"),
    ],
)
def test_wrong_use_is_said_without_quoting_the_environment(
    launch: Launch, environment: dict[str, str], says: str
) -> None:
    code, output = finish(launch(environment=environment))

    assert code == 64
    assert says in output
    assert CLAIM not in output
    assert "marker-password" not in output


@pytest.mark.scenario("S35")
@pytest.mark.parametrize("skew_s", [-600, 600])
def test_a_wrong_wall_clock_changes_nothing(gateway: FakeGateway, launch: Launch, skew_s: int) -> None:
    """The wall clock is ten minutes off, and jumps by as much again each time that it is read."""
    prelude = (
        "import time\n_true, _reads = time.time, []\n"
        f"time.time = lambda: (_reads.append(1), _true() + {skew_s} * len(_reads))[1]"
    )
    begun = time.monotonic()

    code, _ = finish(launch(*shell("sleep 0.3"), prelude=prelude, environment={"HATCHWAY_STRANDED_SECONDS": "30"}))

    assert code == 0
    assert time.monotonic() - begun < 20
    assert len(gateway.of(COMPLETE)) == 1
