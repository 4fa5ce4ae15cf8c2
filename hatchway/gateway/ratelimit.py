"""A limit on refused redemptions per address: it spares the database and the log from a client that guesses."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_S = 60.0
MAX_ADDRESSES = 10_000
"""Bounded memory: the address that was refused longest ago is forgotten first."""


class RefusalLimit:
    """Counts refusals in a sliding minute. Only refusals count: a host may start as many good agents as it likes."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._refused: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> int:
        """Whole seconds until this address may try again; 0 when it may now."""
        times = self._refused.get(_bucket(address))
        if times is None or len(times) < self._per_minute:
            return 0
        return max(0, math.ceil(times[0] + WINDOW_S - self._clock()))

    def refused(self, address: str) -> None:
        """Count one refusal."""
        bucket = _bucket(address)
        times = self._refused.setdefault(bucket, deque(maxlen=self._per_minute))
        times.append(self._clock())
        self._refused.move_to_end(bucket)
        if len(self._refused) > MAX_ADDRESSES:
            self._refused.popitem(last=False)


def _bucket(address: str) -> str:
    """The address, or its /64 for IPv6, where one client owns that many."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed), 64), strict=False).network_address)
    return str(parsed)
