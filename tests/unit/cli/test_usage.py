"""Wrong use of the command line, whatever the command."""

from __future__ import annotations

from importlib import metadata

import pytest

from tests.unit.cli.conftest import Command

COMMANDS = [
    "dev", "demo", "setup", "worker", "gateway", "agent", "provision", "list", "show", "logs", "release", "cancel",
    "forget", "config", "db", "image",
]  # fmt: skip


def test_help_lists_every_command(command: Command) -> None:
    said = command("--help")

    assert said.code == 0
    assert [name for name in COMMANDS if name not in said.out] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "agent"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    said = command(name, "--help")

    assert said.code == 0
    assert f"hatchway {name}" in said.out


def test_the_version_is_the_one_that_is_installed(command: Command) -> None:
    said = command("--version")

    assert (said.code, said.out) == (0, f"hatchway {metadata.version('hatchway')}\n")


def test_no_command_prints_the_commands_and_is_wrong_use(command: Command) -> None:
    said = command()

    assert said.code == 2
    assert "provision" in said.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["frobnicate"], "frobnicate"),
        (["list", "--colour"], "--colour"),
        (["show"], "AGENT"),
        (["provision", "-", "--wait", "forever"], "forever"),
        (["logs", "scaler-x", "--lines", "0"], "--lines"),
        (["worker", "--metrics-port", "http"], "--metrics-port"),
        (["image", "parse"], "REF"),
    ],
)
def test_wrong_use_is_one_sentence_that_names_the_mistake_and_the_help(
    command: Command, arguments: list[str], hint: str
) -> None:
    said = command(*arguments)

    assert said.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert hint in said.err
    assert "--help` shows how it is used" in said.err


def test_wrong_use_of_a_command_that_is_asked_for_json_is_an_object(command: Command) -> None:
    said = command("show", "--json")

    assert said.code == 2
    assert said.out == ""
    assert said.error["error"] == "usage"


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "x"], ["release", "x"], ["forget", "x"], ["logs", "x"], ["db", "migrate"], ["config", "show"],
     ["worker"], ["gateway", "--bind", "127.0.0.1:0"]],
)  # fmt: skip
def test_a_command_that_needs_the_database_says_which_variable_names_it(command: Command, arguments: list[str]) -> None:
    said = command(*arguments)

    assert said.code == 2
    assert "DATABASE_URL" in said.err


@pytest.mark.parametrize("arguments", [["list"], ["db", "migrate"], ["config", "show"]])
@pytest.mark.parametrize("url", ["postgresql://u:hunter2@h:port/db", "hunter2", "host='hunter2", "http://u:hunter2@h"])
def test_a_database_url_that_cannot_be_read_is_never_quoted(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], url: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)

    said = command(*arguments)

    assert said.code in (2, 4)
    assert "hunter2" not in said.err + said.out
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--bind", "8780"], "host:port"),
        (["--bind", "0.0.0.0:0"], "--behind-tls-proxy"),
        (["--tls-cert", "/nowhere.pem"], "--tls-key"),
        (["--instance-id", "two words"], "instance_id"),
    ],
)
def test_a_gateway_refuses_settings_that_would_expose_tokens_or_cannot_work(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], hint: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@127.0.0.1:1/db")

    said = command("gateway", *arguments)

    assert said.code == 2
    assert hint in said.err
