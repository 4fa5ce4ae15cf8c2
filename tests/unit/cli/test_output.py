"""What commands print."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hatchway.cli.output import as_json, cell, emit, table
from hatchway.model import ProvisionState

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (0, "0"),
        (False, "False"),
        (["a", "b"], "a, b"),
        ({"a": 1, "b": None}, "a 1"),
        (timedelta(seconds=90), "90 s"),
        (NOON, "2026-01-02 12:00:00 UTC"),
        (NOON.astimezone(timezone(timedelta(hours=-5))), "2026-01-02 12:00:00 UTC"),
        (ProvisionState.TEARING_DOWN, "tearing-down"),
        ("red\x1b[31m\nnext", "red [31m next"),
    ],
)
def test_a_cell_is_one_line_and_cannot_move_the_cursor(value: Any, shown: str) -> None:
    assert cell(value) == shown


def test_a_table_cuts_nothing() -> None:
    agent_id = "scaler-" + "a" * 200

    lines = list(table(("agent_id", "job_id"), [{"agent_id": agent_id, "job_id": None}, {"agent_id": "b"}]))

    assert len(lines) == 3
    assert agent_id in lines[1]
    assert {line.index(word) for line, word in zip(lines, ("JOB_ID", "-", "-"), strict=True) if word == "JOB_ID"} == {
        lines[1].rindex("-")
    }


def test_json_is_one_line_with_durations_in_seconds() -> None:
    text = as_json({"at": NOON, "took": timedelta(minutes=1), "text": "zwei\nZeilen ä"})

    assert "\n" not in text
    assert json.loads(text) == {"at": "2026-01-02T12:00:00+00:00", "took": 60.0, "text": "zwei\nZeilen ä"}


def test_what_has_no_json_form_is_a_bug_and_not_a_guess() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        as_json({"a": object()})


def test_fields_without_a_value_are_left_out_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"agent_id": "a", "scaler": None, "state": "active"}, json_wanted=False)

    assert capsys.readouterr().out == "agent_id  a\nstate     active\n"
