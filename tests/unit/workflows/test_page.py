"""The page as text: whatever is in it, it stays short, says what one can do, and foreign text stays text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from markdown_it import MarkdownIt

from hatchway.errors import ErrorType
from hatchway.model import (
    ComputeRef,
    EndReason,
    ProvisionState,
    ProvisionStatus,
    ScaleDownReason,
    TeardownFacts,
    TeardownRequest,
)
from workflows import page

NOW = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
HOSTILE = {
    "closing fence": "```\n# Pwned\n[click](https://evil.test)",
    "longer fence": "`````\n\n~~~\n<img src=x onerror=alert(1)>",
    "inline code": "a ` b `` c <script>alert(1)</script>",
    "link": "[click](https://evil.test) https://evil.test www.evil.test ![x](https://evil.test/x.png)",
    "html": "<b>bold</b>\n\n<details open><summary>x</summary>\n\n# Pwned\n",
    "emphasis": "**bold** __bold__ *it* _it_ ~~gone~~ | a | b |\n|---|---|",
    "control characters": "\x1b[31mred\x00\u202e\r\n# Pwned\r```\r# Pwned",
    "heading": "# Pwned\n\n- **What you can do:** nothing",
    "long": "é" * 20_000,
    "long lines with fences": "```\n" * 5_000,
}
OURS = {"heading_open", "heading_close", "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close",
        "paragraph_open", "paragraph_close", "inline", "fence"}  # fmt: skip
INSIDE = {"text", "strong_open", "strong_close", "code_inline", "softbreak"}


def _status(text: str) -> ProvisionStatus:
    return ProvisionStatus(
        agent_id="scaler-" + "0" * 32,
        state=ProvisionState.TEARING_DOWN,
        since=NOW,
        scaler=text,
        waiting_for=f"the job to finish: drained was asked for by {text}",
        deadline_at=NOW,
        line_position=3,
        last_error=text,
        compute=ComputeRef(backend=text, ref=text, host_id=text),
        adopted_by=text,
        next_step=page.next_step(ProvisionState.TEARING_DOWN, "scaler-" + "0" * 32),
    )


def _teardown(text: str) -> TeardownRequest:
    return TeardownRequest(
        agent_id=text,
        facts=TeardownFacts(backend_type=text, host_id=text),
        reason=ScaleDownReason.SHUTDOWN,
        end_reason=EndReason.COMPUTE_EXITED,
    )


PAGES = {
    "provision": lambda text: page.render(_status(text)),
    "end": lambda text: page.render_end(_status(text), NOW, "failed: SpawnFailed", text, None),
    "teardown": lambda text: page.render_teardown(_teardown(text).model_copy(update={"agent_id": "a"}), NOW, text, NOW),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("name", PAGES)
def test_foreign_text_stays_text_and_the_page_short(name: str, text: str) -> None:
    written = PAGES[name](text)

    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(written)
    inside = [child for token in tokens for child in token.children or []]
    assert {token.type for token in tokens} <= OURS
    assert {token.type for token in inside} <= INSIDE
    assert [token.type for token in tokens].count("heading_open") == 1
    assert not any("evil.test" in token.content for token in inside if token.type == "text")
    assert len(written.encode()) <= 2000
    assert tokens[-2].content.startswith("**What you can do:** ")
    assert not any(ord(c) < 32 and c != "\n" for c in written)


def test_an_error_that_is_too_long_keeps_its_beginning_and_its_end() -> None:
    fenced = page.fenced("the agent's compute ended with exit code 1\n" + "x" * 9000 + "\nModuleNotFoundError: yaml")

    assert "exit code 1" in fenced
    assert fenced.endswith("ModuleNotFoundError: yaml\n```")


@pytest.mark.parametrize(
    "text", ["the agent to register", "a slot: scaler:laptop is full: 4 of 4 agents in use, 1 wanted"]
)
def test_our_own_sentences_are_shown_as_they_are(text: str) -> None:
    assert page.inline(text) == text


@pytest.mark.parametrize("state", ProvisionState)
def test_every_state_says_what_one_can_do_with_commands_to_copy(state: ProvisionState) -> None:
    step = page.next_step(state, "scaler-1")

    assert step
    assert "AGENT" not in step


def test_advice_after_a_failure_is_for_failures_that_there_are() -> None:
    assert set(page.AFTER_FAILURE) <= set(ErrorType)


def test_long_lines_are_broken_between_words_and_paths_stay_whole() -> None:
    path = "/var/lib/hatchway/" + "agent-" * 8 + "x"

    lines = page.fenced(f"the record {path} cannot be read: see whether its agent still runs, then remove it").split(
        "\n"
    )

    assert any(path in line for line in lines)
    assert all(len(line) <= page.LINE or line == path for line in lines)


@pytest.mark.parametrize(("position", "words"), [(1, "1"), (1000, "1000"), (1001, "behind 1,000 or more")])
def test_a_place_that_nobody_counted_is_not_shown_as_a_number(position: int, words: str) -> None:
    assert page.place(position) == words
