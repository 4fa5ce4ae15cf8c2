"""`config check` on files that are wrong: what it says stands beside each, as `<name>.txt`.

After a change that is meant: `HATCHWAY_WRITE_SNAPSHOTS=1 pytest tests/unit/config/test_broken_files.py`, and read the
difference. What stands there is what an operator reads.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hatchway.cli.app import run

BROKEN = Path(__file__).parent / "broken"
FILES = sorted(BROKEN.glob("*.yaml"))
WHOLE_FILE = {"empty", "only-a-comment"}
"""Faults that are not on any line."""
ON_LINE = re.compile(r"[a-z0-9-]+\.yaml:(?P<line>[0-9]+):(?P<column>[0-9]+): .+")


def said(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["config", "check", str(file)]) == 2
    return capsys.readouterr().err.replace(f"{BROKEN}/", "")


def test_there_are_enough_of_them() -> None:
    assert len(FILES) >= 20


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_fault_is_told_in_these_words_on_this_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = file.with_suffix(".txt")

    words = said(file, capsys)

    if os.environ.get("HATCHWAY_WRITE_SNAPSHOTS") == "1":
        expected.write_text(words)
    assert words == expected.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_fault_stands_on_a_line_of_the_file_in_order(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(file, capsys).removeprefix("hatchway: ").splitlines()

    places = [ON_LINE.fullmatch(line) for line in lines]

    if file.stem in WHOLE_FILE:
        assert places == [None]
        return
    numbers = [int(place["line"]) for place in places if place]
    assert len(numbers) == len(lines)
    assert numbers == sorted(numbers)
    assert numbers[-1] <= len(file.read_bytes().splitlines())


def marked(text: str) -> set[int]:
    """The lines that end in the remark `# wrong`."""
    return {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}


@pytest.mark.parametrize(
    "file", [f for f in FILES if marked(f.read_text(errors="replace"))], ids=lambda file: file.stem
)
def test_the_lines_that_are_wrong_are_those_that_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {int(place["line"]) for place in ON_LINE.finditer(said(file, capsys))}

    assert named == marked(file.read_text())


@pytest.mark.scenario("S17")
def test_credentials_that_end_before_an_agent_may_have_booted_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(BROKEN / "ttl-shorter-than-boot.yaml", capsys).splitlines()

    assert len(lines) == 4
    assert all("is shorter than adoptionTimeoutSeconds" in line for line in lines)
