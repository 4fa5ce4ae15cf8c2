"""How several candidates' bounds become one answer, in words for people."""

from __future__ import annotations

from typing import Any

import pytest

from hatchway.store.reservations import AtCapacity, BackingOff, Bound, Draining, NeverFits, parse_answer

FULL = {"kind": "full", "scope": "scaler:a", "what": "mcpu", "used": 3500, "cap": 4000, "want": 1000}
LINE = {"kind": "line", "scope": "scaler:a", "used": 2}
NEVER = {"kind": "never-fits", "scope": "pool:p", "what": "mem_bytes", "used": 0, "cap": 8, "want": 20}
DRAINING = {"kind": "draining", "scope": "scaler:b"}
RETIRED = {"kind": "retired", "scope": "scaler:c"}
SOON = {"kind": "backing-off", "scope": "scaler:d", "until": "2026-01-02T03:04:05+01:00"}
LATER = {"kind": "backing-off", "scope": "scaler:e", "until": "2026-01-02T04:04:05+00:00"}


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        ([FULL], AtCapacity),
        ([LINE], AtCapacity),
        ([DRAINING, SOON, NEVER, FULL], AtCapacity),
        ([DRAINING, LATER, SOON], BackingOff),
        ([NEVER, DRAINING], Draining),
        ([RETIRED], Draining),
        ([NEVER, NEVER], NeverFits),
    ],
)
def test_one_candidate_that_only_lacks_room_makes_it_at_capacity(bounds: list[dict[str, Any]], kind: type) -> None:
    answer = parse_answer({"answer": "refused", "bound": bounds})

    assert type(answer) is kind


def test_backing_off_ends_with_the_first_candidate_that_tries_again() -> None:
    answer = parse_answer({"answer": "refused", "bound": [LATER, SOON]})

    assert isinstance(answer, BackingOff)
    assert answer.until is not None
    assert answer.until.isoformat() == "2026-01-02T02:04:05+00:00"


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (FULL, "scaler:a is full: 3500 of 4000 mcpu in use, 1000 wanted"),
        (LINE, "scaler:a: 2 ahead in the line"),
        (NEVER, "pool:p can never hold it: 20 mem_bytes wanted, the cap is 8"),
        (DRAINING, "scaler:b is draining"),
        (RETIRED, "scaler:c is not in the current config"),
        (SOON, "scaler:d backs off after failures until 02:04:05 UTC"),
    ],
)
def test_a_bound_is_a_sentence_that_names_scope_and_numbers(bound: dict[str, Any], sentence: str) -> None:
    assert str(Bound.from_json(bound)) == sentence
