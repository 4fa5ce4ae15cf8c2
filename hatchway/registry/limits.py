"""Registries that limit how often they are asked: none is asked again before its time, whichever spawn wants to.

A registry counts by whom it knows: by account where there is one, else by the address that asks, which all spawns of an
engine share. So each account of a registry waits for itself, and one job's used-up account keeps nobody else waiting.
What a worker remembers of it is a courtesy: a worker that forgets asks once, and is told again.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

BASE = timedelta(seconds=30)
LONGEST = timedelta(minutes=15)
"""Where a registry does not say how long: doubled each time, times 0.8 to 1.0."""
SHORTEST = timedelta(seconds=1)
"""Some say a millisecond, and limit what comes after it too."""
MOST_ASKED = timedelta(hours=1)

_ASKED = re.compile(r"retry[- ]after[:=]?\s*(?P<wait>(?:\d+(?:\.\d+)?(?:h|ms|m|us|µs|μs|ns|s)?)+)", re.IGNORECASE)
_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>h|ms|m|us|µs|μs|ns|s)?")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a registry counts: a user of it, or, without one, the address that asks."""

    registry: str
    user: str | None = None


@dataclass(slots=True)
class _Limited:
    until: float
    times: int


def asked_wait(text: str) -> timedelta | None:
    """How long a registry asks to wait, in its own words: `retry-after: 1m30s`, `Retry-After: 30`. None: it does not.

    Engines hand on what stands in the answer's body, and no headers.
    """
    found = _ASKED.search(text)
    if found is None:
        return None
    parts = _PART.finditer(found["wait"])
    return timedelta(seconds=sum(float(part["number"]) * _SECONDS[part["unit"] or "s"] for part in parts))


class RegistryLimits:
    """What one engine's registries have asked for. Not shared between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limited: dict[Account, _Limited] = {}

    def left(self, account: Account) -> timedelta | None:
        """How long it must not be asked yet. None: it may be asked."""
        limited = self._limited.get(account)
        if limited is None or limited.until <= self._clock():
            return None
        return timedelta(seconds=limited.until - self._clock())

    def limited(self, account: Account, asked: timedelta | None) -> timedelta:
        """It has refused, and asks for so long; answers how long it is left alone.

        Refusals of questions that were under way together count once.
        """
        known = self._limited.get(account)
        times = 1 if known is None else known.times if known.until > self._clock() else known.times + 1
        if asked is None:
            doubled: timedelta = min(BASE * 2 ** (min(times, 10) - 1), LONGEST)
            wait = doubled * random.uniform(0.8, 1.0)  # noqa: S311 - jitter
        else:
            wait = min(max(asked, SHORTEST), MOST_ASKED)
        until = self._clock() + wait.total_seconds()
        self._limited[account] = _Limited(max(until, known.until if known else until), times)
        return wait

    def answered(self, account: Account) -> None:
        """It has served that account: what it refused before is past."""
        self._limited.pop(account, None)
