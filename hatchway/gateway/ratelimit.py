"""A limit on refused redemptions per address: it spares the database and the log from a client that guesses.

Agents share addresses: all of a machine's, all behind a NAT. So an address over its limit is slowed down and not shut
out, or one job could keep every new agent beside it from registering.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable

WINDOW_S = 60.0
MAX_ADDRESSES = 10_000
"""Bounded memory: the address that was refused longest ago is forgotten first."""

TURN_S = 0.05
"""Between two codes that are looked up for an address over its limit: 20 a second are nothing to the database."""
MOST_WAITING = 100
"""Who comes behind so many of its own address is answered at once, and may try again soon: who waits goes in seconds,
and a good agent that is told to wait a minute has few tries before its deadline."""
COME_AGAIN_S = 2


class _Turns:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class RefusalLimit:
    """Counts refusals in a sliding minute. Only refusals count: a host may start as many good agents as it likes."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._refused: OrderedDict[str, deque[float]] = OrderedDict()
        self._turns: dict[str, _Turns] = {}

    def wait_s(self, address: str) -> int:
        """Whole seconds until this address may try again; 0 when it may now."""
        times = self._refused.get(of_one_client(address))
        if times is None or len(times) < self._per_minute:
            return 0
        return max(0, math.ceil(times[0] + WINDOW_S - self._clock()))

    async def turn(self, address: str) -> bool:
        """Wait until a code of this address, which is over its limit, may be looked up. False: too many wait."""
        bucket = of_one_client(address)
        turns = self._turns.setdefault(bucket, _Turns())
        if turns.waiting >= MOST_WAITING:
            return False
        turns.waiting += 1
        try:
            async with turns.lock:
                await asyncio.sleep(TURN_S)
        finally:
            turns.waiting -= 1
            if not turns.waiting:
                del self._turns[bucket]
        return True

    def refused(self, address: str) -> None:
        """Count one refusal."""
        bucket = of_one_client(address)
        times = self._refused.setdefault(bucket, deque(maxlen=self._per_minute))
        times.append(self._clock())
        self._refused.move_to_end(bucket)
        if len(self._refused) > MAX_ADDRESSES:
            self._refused.popitem(last=False)


def of_one_client(address: str) -> str:
    """The address, or its /64 for IPv6, where one client owns that many addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed), 64), strict=False).network_address)
    return str(parsed)
