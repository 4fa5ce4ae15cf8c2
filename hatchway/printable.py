"""Foreign text that is safe to show. Pure: no I/O."""

from __future__ import annotations

import re

_ERROR_CODE = re.compile(r"[A-Za-z0-9._:-]{1,100}")
"""What AWS's services use for theirs; the longest has about sixty characters."""


def printable(text: str) -> str:
    """One line that moves no cursor and hides nothing: what a terminal would obey or not show is written as a space."""
    return "".join(c if c.isprintable() else " " for c in text)


def error_code(given: object) -> str:
    """A foreign error's code, which says in a word what happened. What is no such word is not handed on: an endpoint
    that is not AWS may write there whatever it was sent, credentials and megabytes included."""
    if not given:
        return "unknown"
    return given if isinstance(given, str) and _ERROR_CODE.fullmatch(given) else "an unreadable code"
