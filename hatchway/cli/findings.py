"""What doctor finds: one fault, where it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    check: str
    what: str
    where: str
    todo: str
