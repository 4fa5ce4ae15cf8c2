"""The page of a sweep says what each step did, and what did not get through."""

from __future__ import annotations

from datetime import UTC, datetime

from hatchway.model import SweepOutcome, SweptStep
from workflows.page import LIMIT, render_purge, render_sweep

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_pass_shows_which_steps_are_under_way_and_what_the_others_did() -> None:
    outcome = SweepOutcome(steps={"line": SweptStep(done={"handed_over": 2, "left": 0}), "other": SweptStep()})

    page = render_sweep(outcome, {"other"}, NOW)

    assert page.startswith("### sweeping\n")
    assert "- **line** 2 handed over\n" in page
    assert "- **other** under way" in page
    assert "left" not in page


def test_a_pass_that_had_nothing_to_do_says_so() -> None:
    page = render_sweep(SweepOutcome(steps={"line": SweptStep(done={"handed_over": 0})}), set(), NOW)

    assert page.startswith("### swept\n")
    assert "- **line** nothing to do" in page
    assert page.endswith("**What you can do:** Nothing.")


def test_a_failed_step_is_shown_with_its_words_as_text_and_within_the_limit() -> None:
    outcome = SweepOutcome(steps={"line": SweptStep(error="no **route**\n```\n" + "x" * 5000), "other": SweptStep()})

    page = render_sweep(outcome, set(), NOW)

    assert page.startswith("### swept, with failures\n")
    assert "- **line** failed" in page
    assert "no **route**" in page.split("```text\n")[1]
    assert page.count("```") == 2
    assert len(page.encode()) <= LIMIT
    assert "the next pass tries again" in page


def test_a_purge_is_shown_by_how_much_of_each_kind_is_deleted() -> None:
    outcome = SweepOutcome(steps={"claims": SweptStep(done={"purged": 12}), "jobs": SweptStep(done={"purged": 0})})

    under_way, ended = render_purge(outcome, {"jobs"}, NOW), render_purge(outcome, set(), NOW)

    assert under_way.startswith("### purging\n")
    assert "- **jobs** under way" in under_way
    assert ended.startswith("### purged\n")
    assert "- **claims** 12 purged" in ended
    assert "- **jobs** nothing to do" in ended
