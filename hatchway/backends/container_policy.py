"""What the agents of one network may reach, as declared: the key under which agents share a network.

Written onto the network as a label, so that its rules can be made again by any worker, without the configuration that
the agents were spawned under.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self
from urllib.parse import urlsplit

from hatchway.backends.base import SpawnSpec
from hatchway.errors import PermanentSpawnError, SpawnCode

HOST_NAME = "host.docker.internal"
"""What every agent's container calls the engine's machine."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Policy:
    """`gateways` are `host:port`; `allow` and `host_ports` as the label set's `networkPolicy` has them."""

    gateways: tuple[str, ...]
    deny_all: bool = False
    allow: tuple[str, ...] | None = None
    host_ports: tuple[int, ...] = ()

    @classmethod
    def of(cls, spec: SpawnSpec, urls: str) -> Self:
        """The policy of one spawn. `urls`: the orchestrator URL, or a comma list. Raises PermanentSpawnError."""
        declared = spec.label_set.network_policy
        gateways = tuple(sorted({_endpoint(url.strip()) for url in urls.split(",") if url.strip()}))
        if declared is None:
            return cls(gateways)
        allow = None if declared.allowlist is None else tuple(sorted(set(declared.allowlist)))
        return cls(gateways, declared.deny_all, allow, tuple(sorted(set(declared.host_access))))

    @classmethod
    def from_label(cls, text: str) -> Self:
        """Raises ValueError, KeyError or TypeError for what no release wrote."""
        read = json.loads(text)
        return cls(
            gateways=tuple(map(str, read["gateways"])),
            deny_all=bool(read["deny_all"]),
            allow=None if read["allow"] is None else tuple(map(str, read["allow"])),
            host_ports=tuple(map(int, read["host_ports"])),
        )

    @property
    def label(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def key(self) -> str:
        return hashlib.sha256(self.label.encode()).hexdigest()[:16]


def _endpoint(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    except ValueError:
        host, port = "", 0
    if not host or ":" in host:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            "an isolated network opens the gateway by its IPv4 address or name and its port, and the orchestratorUrl "
            "has no such: write it like http://gateway.example:8780 (agents' networks carry no IPv6)",
        )
    return f"{host}:{port}"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def is_address(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def nameservers(resolv_conf: str) -> tuple[ipaddress.IPv4Address, ...]:
    """The IPv4 nameservers of a resolv.conf(5), at most three as there, without those of this machine's loopback."""
    return tuple(_addresses(resolv_conf.splitlines()))[:3]


def _addresses(lines: Iterable[str]) -> Iterable[ipaddress.IPv4Address]:
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver" and is_address(words[1]):
            address = ipaddress.IPv4Address(words[1])
            if not address.is_loopback:
                yield address
