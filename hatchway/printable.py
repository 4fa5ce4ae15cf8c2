"""Foreign text that is safe to show. Pure: no I/O."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line that moves no cursor and hides nothing: what a terminal would obey or not show is written as a space."""
    return "".join(c if c.isprintable() else " " for c in text)
