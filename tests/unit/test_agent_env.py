"""Who may set which variable of an agent's environment, and who wins."""

from __future__ import annotations

import subprocess

import pytest

from hatchway.agent_env import agent_command_objection, compose_agent_env, url_on_record, worker_agent_env
from hatchway.errors import PermanentSpawnError, SpawnCode

BASE = {
    "KICI_ORCHESTRATOR_URL": "http://gateway",
    "KICI_AGENT_ID": "scaler-1",
    "KICI_LABELS": "linux",
    "KICI_SCALER_MANAGED": "1",
    "KICI_SCALER_CLAIM_CODE": "c0de",
}


def test_later_layers_win_over_earlier_ones() -> None:
    env = compose_agent_env(
        BASE,
        {"A": "worker", "B": "worker", "C": "worker", "KICI_EXTRA": "worker"},
        {"B": "set", "C": "set", "HATCHWAY_AGENT_COMMAND": '["true"]'},
        {"C": "job", "D": "job"},
    )

    assert env == {
        **BASE, "A": "worker", "B": "set", "C": "job", "D": "job", "KICI_EXTRA": "worker",
        "HATCHWAY_AGENT_COMMAND": '["true"]',
    }  # fmt: skip


def test_the_layers_themselves_are_left_as_they_were() -> None:
    base = dict(BASE)

    compose_agent_env(base, {"A": "1"}, {}, {"B": "2"})

    assert base == BASE


def test_the_worker_may_say_where_the_gateway_is() -> None:
    env = compose_agent_env(BASE, {"KICI_ORCHESTRATOR_URL": "http://elsewhere"}, {}, {})

    assert env["KICI_ORCHESTRATOR_URL"] == "http://elsewhere"


@pytest.mark.parametrize(
    ("of_scaler", "of_worker", "kept"),
    [
        ("http://here", {}, "http://here"),
        ("http://here", {"KICI_ORCHESTRATOR_URL": "http://there"}, "http://there"),
        ("http://a,https://user:password@b", {}, ""),
        ("http://here", {"KICI_ORCHESTRATOR_URL": "https://user:password@there"}, ""),
    ],
)
def test_the_url_on_record_is_the_one_that_the_agent_gets_and_never_holds_a_password(
    of_scaler: str, of_worker: dict[str, str], kept: str
) -> None:
    given = compose_agent_env({"KICI_ORCHESTRATOR_URL": of_scaler}, of_worker, {}, {})["KICI_ORCHESTRATOR_URL"]

    assert url_on_record(of_scaler, of_worker) == kept
    assert kept in ("", given)


def test_only_the_workers_prefixed_variables_reach_its_agents() -> None:
    environ = {"KICI_AGENT_ENV_HTTP_PROXY": "p", "KICI_AGENT_ENV_": "x", "HTTP_PROXY": "q", "DATABASE_URL": "secret"}

    assert worker_agent_env(environ) == {"HTTP_PROXY": "p"}


@pytest.mark.parametrize(
    "name",
    ["KICI_AGENT_ID", "KICI_SCALER_CLAIM_CODE", "KICI_ANYTHING", "HATCHWAY_GATEWAY_URL", "HATCHWAY_X", "kici_labels",
     "Hatchway_Agent_Command"],
)  # fmt: skip
def test_the_products_own_names_are_refused_from_label_set_and_job(name: str) -> None:
    given, nothing = {name: "hunter2"}, dict[str, str]()
    for label_set, job in ((given, nothing), (nothing, given)):
        with pytest.raises(PermanentSpawnError, match=f"{name} is refused") as refused:
            compose_agent_env(BASE, {}, label_set, job)

        assert refused.value.code is SpawnCode.INVALID_SPEC
        assert "hunter2" not in str(refused.value)


def test_the_agents_command_is_the_label_sets_to_give_and_not_the_jobs() -> None:
    command = {"HATCHWAY_AGENT_COMMAND": '["make", "test"]'}

    assert compose_agent_env(BASE, {}, command, {})["HATCHWAY_AGENT_COMMAND"] == '["make", "test"]'
    with pytest.raises(PermanentSpawnError, match="the job's env: HATCHWAY_AGENT_COMMAND is refused"):
        compose_agent_env(BASE, {}, {}, command)


@pytest.mark.parametrize("name", ["KICI_AGENT_ID", "KICI_LABELS", "KICI_SCALER_MANAGED", "KICI_SCALER_CLAIM_CODE"])
def test_the_worker_cannot_give_all_its_agents_one_identity(name: str) -> None:
    with pytest.raises(PermanentSpawnError, match=name):
        compose_agent_env(BASE, {name: "x"}, {}, {})


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A-B", "A B", "A\n", "Ä", "A\0"])
def test_what_is_no_variable_name_is_refused(name: str) -> None:
    with pytest.raises(PermanentSpawnError, match="no variable name"):
        compose_agent_env(BASE, {}, {}, {name: "x"})


@pytest.mark.parametrize(("value", "reason"), [("a\0b", "NUL"), ("x" * 131_070, "128 KiB"), ("é" * 65_535, "128 KiB")])
def test_a_value_that_no_process_can_be_started_with_is_refused_unseen(value: str, reason: str) -> None:
    with pytest.raises(PermanentSpawnError, match=reason) as refused:
        compose_agent_env(BASE, {}, {}, {"A": value})

    assert value not in str(refused.value)


def test_the_longest_value_that_linux_takes_is_let_through() -> None:
    longest = "x" * 131_069

    env = compose_agent_env({}, {}, {}, {"A": longest})

    subprocess.run(["/bin/sh", "-c", ":"], env=env, check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/sh", "-c", ":"], env={"A": longest + "x"}, check=True)


@pytest.mark.parametrize("value", ['["a"]', '["/bin/sh", "-c", ""]'])
def test_a_json_array_of_strings_is_an_agents_command(value: str) -> None:
    assert agent_command_objection(value) is None


@pytest.mark.parametrize("value", ["", "make test", "[]", '[""]', "[1]", '["a", 1]', '{"a": 1}', '"a"', "null", "["])
def test_anything_else_is_not(value: str) -> None:
    assert "JSON array" in (agent_command_objection(value) or "")
    with pytest.raises(PermanentSpawnError, match="JSON array"):
        compose_agent_env(BASE, {}, {"HATCHWAY_AGENT_COMMAND": value}, {})
