"""What an exception means to a shell."""

from __future__ import annotations

import json

import pytest

from hatchway.cli.failures import ExitCode, failed, failure_of, report, unreachable, usage
from hatchway.errors import (
    ConfigError,
    HatchwayError,
    InvalidReference,
    SchemaOutdated,
    StoreContended,
    StoreUnreachable,
)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (usage("no"), 2, "usage"),
        (unreachable("no"), 4, "unreachable"),
        (failed("not_found", "no"), 1, "not_found"),
        (StoreUnreachable("no"), 4, "unreachable"),
        (StoreContended("no"), 1, "store_contended"),
        (SchemaOutdated("no"), 1, "schema_outdated"),
        (ConfigError("no"), 2, "config"),
        (InvalidReference("no"), 2, "invalid_reference"),
        (HatchwayError("no"), 1, "hatchway"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("no"), 1, "internal"),
    ],
)
def test_every_error_has_its_exit_code_and_a_word_for_programs(error: BaseException, code: int, word: str) -> None:
    failure = failure_of(error)

    assert (failure.code, failure.error) == (code, word)


def test_an_unforeseen_error_is_one_sentence_without_its_text_which_may_quote_a_secret() -> None:
    said: list[str] = []

    code = report(ValueError("password=hunter2"), as_json=False, say=said.append)

    assert code is ExitCode.FAILED
    assert said == ["hatchway: unforeseen ValueError; HATCHWAY_DEBUG=1 shows where"]


def test_an_unforeseen_error_shows_where_it_came_from_to_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HATCHWAY_DEBUG", "1")
    said: list[str] = []

    report(ValueError("here"), as_json=False, say=said.append)

    assert "ValueError: here" in said[0]


def test_an_error_as_json_is_one_object_with_two_fields() -> None:
    said: list[str] = []

    report(usage("give it a FILE"), as_json=True, say=said.append)

    assert json.loads(said[0]) == {"error": "usage", "message": "give it a FILE"}


def test_what_an_error_quotes_cannot_move_the_cursor_and_its_lines_stay_lines() -> None:
    said: list[str] = []

    report(ConfigError("one \x1b[2J\ntwo \u202e"), as_json=False, say=said.append)

    assert said == ["hatchway: one  [2J\ntwo  "]
