"""Which addresses an event may be sent to. The address that is connected to is the very one that was checked.

A name is resolved once; whoever runs its DNS could otherwise answer with a public address to the check and with this
network's to the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from hatchway.addresses import METADATA
from hatchway.errors import PermanentSpawnError, SpawnCode, TransientSpawnError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

RESOLVE_S = 5.0
MOST_ADDRESSES = 4
"""Of a name, tried one after the other."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER = tuple(ipaddress.ip_network(text) for text in (*METADATA, "169.254.0.0/16", "fe80::/10", "fd00:ec2::/32"))
"""Where clouds tell a machine about itself and its credentials, by link-local and by other addresses."""


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
    return address.is_global or any(address in network for network in allowed)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that is reached in the end, where an IPv6 one only wraps it."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


async def checked_addresses(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses of `host` that may be connected to, at least one. Raises SpawnError."""
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
