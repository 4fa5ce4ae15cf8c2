"""Claim codes in words of others, told by their looks: for those who do not know the code itself. Pure.

A code is 32 random bytes in base64url: 43 characters. Who was given one quotes it with a word at its side (`env%3D…`,
`\\n…`), broken over two lines, or as base64 or hexadecimal of the text that it stood in. What an operator needs stays
readable: ids and digests have no capitals, and names are made of words.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

LENGTH = 43
"""Characters of a claim code."""

_DEPTH = 3
"""Encodings within one another that are undone: of base64 of a JSON string's base64, say."""

_RUN = re.compile(rf"[A-Za-z0-9_-]{{{LENGTH},}}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{58,}")  # 43 bytes
_HEX = re.compile(r"[0-9A-Fa-f]{86,}")  # 43 bytes
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})|\\{1,8}u00([0-9A-Fa-f]{2})|\\{1,8}([nrtbf\"/])")
_BREAK = re.compile(r"[^\S\n]*\n\s*")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")

_WORDY = 34
"""Characters of 43 that lie in words, from which on they are a name. Of a million random codes, some 30 look so."""
_SLASHES = 4
"""Most `/` and `+` in 58 characters of base64; a path has more, and of random ones nineteen of twenty have no more."""


def claims_in(text: str) -> list[tuple[int, int]]:
    """Where something stands that may hold a claim code, as (start, end), in order; they do not overlap."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted(_spans(text, _DEPTH)):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _spans(text: str, depth: int) -> Iterator[tuple[int, int]]:
    for seen in (_Undone(text, joined=False), _Undone(text, joined=True)):
        for found in _RUN.finditer(seen.text):
            if _is_random(found[0], LENGTH, _WORDY):
                yield seen.span(found)
        for found in _BASE64.finditer(seen.text):
            if _is_opaque(found[0]) or (depth and _hides(_unbased(found[0]), depth)):
                yield seen.span(found)
        for found in _HEX.finditer(seen.text):
            if depth and _hides(_unhexed(found[0]), depth):
                yield seen.span(found)


class _Undone:
    """A text without the escapes of URLs and of JSON, and which character of it came from where."""

    def __init__(self, text: str, *, joined: bool) -> None:
        characters: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        gaps = {found.start(): found.end() for found in _BREAK.finditer(text)} if joined else {}
        escapes = {found.start(): found for found in _ESCAPE.finditer(text)}
        at = 0
        while at < len(text):
            if at in gaps:
                at = gaps[at]
                continue
            found = escapes.get(at)
            character, end = (_meant(found), found.end()) if found else (text[at], at + 1)
            if not (joined and character == "\n"):
                characters.append(character)
                self._starts.append(at)
                self._ends.append(end)
            at = end
        self.text = "".join(characters)

    def span(self, found: re.Match[str]) -> tuple[int, int]:
        return self._starts[found.start()], self._ends[found.end() - 1]


def _meant(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    if digits:
        return chr(int(digits, 16))
    return {"/": "/", '"': '"', "n": "\n"}.get(escape[3], " ")


def _is_random(run: str, length: int, wordy: int) -> bool:
    """Whether any part of it of that length may be random: it has both cases, and is not made of words."""
    return any(_is_window_random(run[at : at + length], wordy) for at in range(len(run) - length + 1))


def _is_window_random(window: str, wordy: int) -> bool:
    if window.islower() or window.isupper() or not any(c.isalpha() for c in window):
        return False
    return sum(len(word[0]) for word in _WORD.finditer(window)) < wordy


def _is_opaque(run: str) -> bool:
    """Whether it is base64 of whatever cannot be read: a session's token, or what holds a code in another form."""
    windows = (run[at : at + 58] for at in range(len(run) - 57))
    return any(
        _is_window_random(window, _WORDY * 58 // LENGTH) and window.count("/") + window.count("+") <= _SLASHES
        for window in windows
    )


def _hides(decoded: Iterator[bytes], depth: int) -> bool:
    return any(any(True for _ in _spans(raw.decode("latin-1"), depth - 1)) for raw in decoded)


def _unbased(run: str) -> Iterator[bytes]:
    """As it reads from each of its first four characters: what stands before it may belong to something else."""
    plain = run.replace("-", "+").replace("_", "/")
    for start in range(4):
        yield base64.b64decode(plain[start : start + (len(plain) - start) // 4 * 4])


def _unhexed(run: str) -> Iterator[bytes]:
    for start in range(2):
        yield bytes.fromhex(run[start : start + (len(run) - start) // 2 * 2])
