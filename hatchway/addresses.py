"""Addresses of a network policy as people write them. Pure: the configuration's schema imports it.

Addresses only, and of IPv4: agents' networks carry no IPv6, and a host name would mean whatever its DNS answers at the
moment of a spawn, which nobody can read in the configuration.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

METADATA = ("168.63.129.16", "100.100.100.200", "192.0.0.192")
"""Where Azure, Alibaba and Oracle tell a machine about itself, its settings and credentials: not link-local, as other
clouds' are."""

NEVER = tuple(
    ipaddress.IPv4Network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", *METADATA)
)
"""What no policy can open: this host, loopback, link-local with the clouds' metadata (RFC 3927), multicast (RFC 5771),
the reserved block with the broadcast address (RFC 1112), and the metadata of the rest."""

PRIVATE = tuple(
    ipaddress.IPv4Network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15")
)
"""What is no internet: private use (RFC 1918), carriers' NAT (RFC 6598), protocol assignments (RFC 6890), benchmark
networks (RFC 2544). Closed unless an allowlist names them."""

_PORT = re.compile(r"[0-9]{1,5}")


class AddressError(ValueError):
    """An entry that cannot be used. A sentence without the entry's own text: the path in front of it names it."""


@dataclass(frozen=True)
class Opening:
    """One network that may be reached, on every port or on one (TCP and UDP)."""

    network: ipaddress.IPv4Network
    port: int | None = None


def parse_opening(text: str) -> Opening:
    """`203.0.113.0/24`, `203.0.113.7` or either with `:443`. Raises AddressError."""
    address, colon, port = text.strip().partition(":")
    if ":" in port:
        raise AddressError("is an IPv6 address, and agents' networks carry IPv4 only")
    if colon and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise AddressError("has no port between 1 and 65535 after its colon")
    try:
        network = ipaddress.IPv4Network(address)
    except ValueError as e:
        raise AddressError(_objection(address, e)) from None
    closed = next((never for never in NEVER if network.subnet_of(never)), None)
    if closed is not None:
        raise AddressError(f"lies in {closed}, which no policy opens: loopback, link-local (metadata) and multicast")
    return Opening(network, int(port) if colon else None)


def _objection(address: str, e: ValueError) -> str:
    if "has host bits set" in str(e):
        return f"is no network: did you mean {ipaddress.IPv4Network(address, strict=False)}?"
    if re.search(r"[A-Za-z]", address):
        return (
            "is a host name: write the address or network that it stands for, since a name would open whatever its "
            "DNS answers at each spawn"
        )
    return "must be an IPv4 address or network, as in 203.0.113.7, 203.0.113.0/24 or 203.0.113.7:443"
