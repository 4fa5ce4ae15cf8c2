"""What the files around the code promise: pins, the list of dependencies, the example configurations, the Makefile."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from hatchway.config.loading import load

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]


def _name(requirement: str) -> str:
    """The project name as package indexes compare it (PEP 503)."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_constraints_are_pins_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()

    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []
    assert "hatchway" not in {_name(line) for line in lines}


def test_every_dependency_is_pinned() -> None:
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}

    assert {_name(r) for r in REQUIREMENTS} - pinned == set()


def test_every_dependency_has_its_line_and_its_reason() -> None:
    lines = [line for line in (ROOT / "docs/dependencies.md").read_text().splitlines() if line.startswith("| ")]

    explained = {_name(word) for line in lines for word in re.findall(r"[A-Za-z0-9._-]+", line.split("|")[1])}
    assert {_name(r) for r in REQUIREMENTS} - explained == set()
    assert [line for line in lines if any(not cell.strip() for cell in line.split("|")[1:4])] == []


@pytest.mark.parametrize("name", ["hatchway.yaml", "hatchway-docker.yaml"])
def test_the_composed_configurations_load(name: str) -> None:
    assert load(ROOT / "deploy" / name).scalers


MISSING = {
    "no Python": ([], "needs Python 3.11 or newer"),
    "a Python without venv": (["PYTHON=./python3"], "has no venv module"),
}


@pytest.mark.parametrize(("arguments", "said"), MISSING.values(), ids=MISSING.keys())
def test_a_missing_tool_gives_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    crippled = tmp_path / "python3"
    crippled.write_text("#!/bin/sh\nexit 1\n")
    crippled.chmod(0o755)
    make = shutil.which("make")

    done = subprocess.run(
        [str(make), *arguments, "install"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/nonexistent"},
    )  # fmt: skip

    sentences = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert done.returncode != 0
    assert len(sentences) == 1
    assert said in sentences[0]
