"""`hatchway config check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatchway.cli.dev import default_config
from tests.unit.cli.conftest import Command

GOOD = (
    "version: 1\nscalers: [{name: a, type: bare-metal, maxAgents: 1, labelSets: [{labels: [linux], user: nobody}]}]\n"
)


def test_a_good_file_is_fine(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "hatchway.yaml"
    file.write_text(GOOD)

    said = command("config", "check", str(file))

    assert said.code == 0
    assert said.out.splitlines() == ["a: bare-metal, at most 1 agent, 1 label set", f"{file} is fine"]


def test_a_good_file_as_json_names_its_scalers(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "hatchway.yaml"
    file.write_text(GOOD)

    said = command("config", "check", str(file), "--json")

    assert said.object["scalers"] == ["a"]
    assert len(said.object["sha256"]) == 64


def test_everything_that_is_wrong_is_said_at_once_with_its_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "hatchway.yaml"
    file.write_text(GOOD.replace("maxAgents: 1", "maxAgnets: 1") + "globalMaxAgents: -1\n")

    said = command("config", "check", str(file))

    assert (said.code, said.out) == (2, "")
    assert f"{file}:2:" in said.err
    assert f"{file}:3:" in said.err
    assert "maxAgents" in said.err


def test_a_key_of_the_file_cannot_move_the_cursor_of_who_reads_what_is_wrong_with_it(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "hatchway.yaml"
    file.write_text(GOOD + '"\\e[2J\\nevil": 1\n')

    said = command("config", "check", str(file))

    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert said.err.rstrip("\n").isprintable()


@pytest.mark.parametrize("arguments", [["config", "check", "{}/absent.yaml"], ["dev", "--config", "{}/absent.yaml"]])
def test_a_configuration_that_is_not_there_is_bad_input(
    command: Command, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    said = command(*(argument.format(tmp_path) for argument in arguments))

    assert said.code == 2
    assert "absent.yaml: does not exist" in said.err


def test_the_default_configuration_of_dev_is_a_good_one(command: Command) -> None:
    said = command("config", "check", str(default_config()))

    assert said.code == 0
