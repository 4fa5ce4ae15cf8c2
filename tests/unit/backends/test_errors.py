"""Redaction, the log tail, and what an OSError of this host means for a spawn."""

from __future__ import annotations

import base64
import errno
import json
import os
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatchway.backends.errors import (
    MASK,
    TAIL_BYTES,
    TAIL_LINES,
    log_tail,
    plain,
    quoted,
    redact,
    spawn_error_of,
    without_claims,
)
from hatchway.errors import PermanentSpawnError, SpawnCode, SpawnError, TransientSpawnError
from hatchway.host import shim_log

SECRET = 's3cr&t/p+ss "w=rd\\é'

SPELLINGS = {
    "plain": SECRET,
    "percent, all": quote(SECRET, safe=""),
    "percent, path": quote(SECRET),
    "form": quote_plus(SECRET),
    "json": json.dumps(SECRET),
    "json, not escaped": json.dumps(SECRET, ensure_ascii=False),
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
}


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_secret_is_masked_however_it_is_spelled(spelling: str) -> None:
    text = redact(f"before {spelling} after", [SECRET])

    assert text.replace('"', "") == f"before {MASK} after"


@pytest.mark.scenario("S41")
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
@pytest.mark.parametrize("after", [b"", b"\n", b":x", b"yes"])
def test_a_secret_inside_base64_is_masked_at_every_alignment(encode: object, before: bytes, after: bytes) -> None:
    assert callable(encode)
    raw = SECRET.encode()

    text = redact(encode(before + raw + after).decode(), [SECRET])

    assert MASK in text
    # Two characters at each edge may stay: they share their bits with the neighbours.
    assert len(text) - len(MASK) <= 4 * (len(before) + len(after) + 4) / 3 + 4


def test_a_line_of_a_secret_of_many_lines_is_masked_alone() -> None:
    key = "-----BEGIN KEY-----\nMIIEvAIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----\n"

    text = redact("[pod] kqhkiG9w0BAQ\n[pod] harmless", [key])

    assert text == f"[pod] {MASK}\n[pod] harmless"


def test_the_longer_of_two_secrets_leaves_no_rest() -> None:
    assert redact("abcdef", ["abc", "abcdef"]) == MASK


def test_an_empty_secret_masks_nothing() -> None:
    assert redact("text", [""]) == "text"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://e\x1b\\link", "link"),
        ("10 %\r20 %\r\nend", "10 %\n20 %\nend"),
        ("a\0b\x08c\x7fd\x9be", "abcde"),
        ("left\u202eright\u2066!", "leftright!"),
        ("tab\tstays\nas does the line", "tab\tstays\nas does the line"),
    ],
)
def test_control_characters_go(text: str, wanted: str) -> None:
    assert plain(text) == wanted


def test_a_secret_that_escapes_hide_is_masked() -> None:
    assert log_tail("tok\x1b[1men\x00-value", ["token-value"]) == MASK


def test_the_tail_keeps_the_last_lines() -> None:
    text = "".join(f"line {n}\n" for n in range(1000))

    lines = log_tail(text).split("\n")

    assert len(lines) == TAIL_LINES
    assert lines[-1] == "line 999"


@given(st.text(max_size=20_000), st.lists(st.text(min_size=1, max_size=20), max_size=3))
def test_the_tail_is_bounded_and_printable_whatever_comes(text: str, secrets: list[str]) -> None:
    tail = log_tail(text * 3, secrets)

    assert len(tail.encode()) <= TAIL_BYTES
    assert len(tail.split("\n")) <= TAIL_LINES
    assert plain(tail) == tail


def test_a_tail_of_long_lines_is_cut_at_a_line() -> None:
    tail = log_tail("\n".join(["é" * 1000] * 40))

    assert len(tail.encode()) <= TAIL_BYTES
    assert set(tail) == {"é", "\n"}
    assert {len(line) for line in tail.split("\n")} == {1000}


def test_the_supervisor_masks_with_the_same_word() -> None:
    assert MASK.encode() == shim_log.MASK


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, TransientSpawnError, SpawnCode.DISK_FULL),
        (errno.EDQUOT, TransientSpawnError, SpawnCode.DISK_FULL),
        (errno.EAGAIN, TransientSpawnError, SpawnCode.CAPACITY),
        (errno.ENOMEM, TransientSpawnError, SpawnCode.CAPACITY),
        (errno.EMFILE, TransientSpawnError, SpawnCode.CAPACITY),
        (errno.ENFILE, TransientSpawnError, SpawnCode.CAPACITY),
        (errno.EACCES, PermanentSpawnError, SpawnCode.INVALID_SPEC),
        (errno.EROFS, PermanentSpawnError, SpawnCode.INVALID_SPEC),
    ],
)
def test_an_os_error_says_its_consequence(number: int, kind: type[SpawnError], code: SpawnCode) -> None:
    error = spawn_error_of(OSError(number, os.strerror(number), "/some/file"), "writing the record")

    assert type(error) is kind
    assert error.code is code
    assert "/some/file" in str(error)
    assert "writing the record" in str(error)


CLAIM = "7iVyJv1eAibnzgbnxhIefdYTB-jTTFG0D_HLowPaK8E"


@pytest.mark.parametrize("before", range(470, 512, 3))
@pytest.mark.parametrize("known", [True, False])
def test_what_is_quoted_is_searched_before_it_is_cut(before: int, known: bool) -> None:
    said = quoted(f"{'y' * before} {CLAIM}", 500, [CLAIM] if known else [])

    assert not any(CLAIM[n : n + 8] in said for n in range(len(CLAIM) - 8))
    assert len(said) <= 501


def test_a_secret_with_control_characters_and_breaks_between_is_quoted_by_nobody() -> None:
    assert quoted("key \x1b[1mhunter2\nand-more\x1b[0m refused", 100, ["hunter2\nand-more"]) == f"key {MASK} refused"


@pytest.mark.parametrize("around", ["user data was {}", "CLAIM={}", "'{}',", "{}"])
def test_a_claim_that_nobody_knows_any_more_is_told_by_its_looks(around: str) -> None:
    assert without_claims(around.format(CLAIM)) == around.format(MASK)


@pytest.mark.parametrize(
    "innocent", ["scaler-01a22b9660d37d53bec952f45bca0587", "sha256:" + "0" * 64, CLAIM[:-1], CLAIM + "x", "é" * 43]
)
def test_what_is_no_claim_stays_readable(innocent: str) -> None:
    assert without_claims(innocent) == innocent


@pytest.mark.parametrize("secret", ["hunter2-\ud800-end", "hunter2-\udc80-\ud800"])
def test_half_of_a_surrogate_pair_keeps_nobody_from_masking(secret: str) -> None:
    assert redact(f"it said {secret}", [secret]) == f"it said {MASK}"
