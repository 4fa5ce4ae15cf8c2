"""Which addresses an event may be sent to. The address that is connected to is the very one that was checked.

A name is resolved once; whoever runs its DNS could otherwise answer with a public address to the check and with this
network's to the connection.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hatchway.addresses import METADATA
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

RESOLVE_S = 5.0
RESOLVERS = 2
"""Look-ups of one name at a time."""
MOST_ADDRESSES = 4
"""Of a name, tried one after the other."""

_WRAPPING = tuple(ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
"""With an IPv4 address at their end: NAT64, and two that nobody should use any more."""
_INTERNET = ipaddress.IPv6Network("2000::/3")
"""All that has been given out for the public internet. Python's `is_global` lists what is not, and not all of it."""
_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        *METADATA, "169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::/32", "64:ff9b:1::/48",
    )
)  # fmt: skip
"""Where clouds tell a machine about itself and its credentials, by link-local and by other addresses; and a network's
own translation to IPv4 (RFC 8215), in which it is that network's choice where the address stands that is reached.
"""


def parse_networks(texts: Iterable[str]) -> list[Network]:
    """`allowAddresses`. Raises ValueError with a sentence that does not quote the entry."""
    found: list[Network] = []
    for text in texts:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as e:
            hint = "has bits set after its prefix" if "host bits" in str(e) else "is no IP address or network"
            raise ValueError(f"{hint}, as in 10.20.0.0/16 or fd12:3456::/32") from None
        if any(network.version == never.version and network.overlaps(never) for never in _NEVER):
            raise ValueError("holds link-local or metadata addresses, which no event is ever sent to")
        if network.is_multicast or network.network_address.is_unspecified:
            raise ValueError("holds addresses that nobody in particular has")
        found.append(network)
    return found


def may_be_reached(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether an event may go there: the public internet, and what is allowed of the rest."""
    behind = _embedded(address)
    if behind is not None:
        return may_be_reached(behind, allowed)
    if any(address in never for never in _NEVER) or address.is_multicast or address.is_unspecified:
        return False
    public = address.is_global and (address.version == 4 or address in _INTERNET)
    return public or any(address in network for network in allowed)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that is reached in the end, where an IPv6 one only wraps it."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if any(address in wrapping for wrapping in _WRAPPING) and not address.is_loopback:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


_resolvers: dict[str, ThreadPoolExecutor] = {}
"""By name. A look-up that hangs keeps its thread long after nobody waits for it any more; those of the whole process
are few, and Postgres, files and every other target's look-ups need them.
"""


async def _look_up(host: str, port: int) -> list[Any]:
    threads = _resolvers.setdefault(host, ThreadPoolExecutor(RESOLVERS, thread_name_prefix="event-target"))
    ask = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return await asyncio.get_running_loop().run_in_executor(threads, ask)


async def checked_addresses(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses of `host` that may be connected to, at least one. Raises SpawnError."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await _look_up(host, port)
    except TimeoutError:
        raise TransientSpawnError(
            SpawnCode.DAEMON_UNAVAILABLE, f"the name {host} was not resolved within {RESOLVE_S:g} s"
        ) from None
    except (OSError, UnicodeError) as e:
        # EAI_AGAIN is worth another try; that a name does not exist may be a record that is not there yet.
        raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"the name {host} cannot be resolved: {e}") from None
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(sockaddr[0])) for *_, sockaddr in found))
    good = [address for address in addresses if may_be_reached(address, allowed)]
    if not good:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            f"{host} has no address that events may be sent to ({', '.join(map(str, addresses[:3]))}): private, "
            "loopback and reserved ones need to lie in the target's `allowAddresses`, and metadata ones never may",
        )
    return good[:MOST_ADDRESSES]
