"""The firewall rules of one isolated network, as nftables reads them. Pure: text in, text out.

    agent ─► a port of the host (input)            the gateway, DNS, `hostAccess`; nothing else
    agent ─► anywhere else (forward)               the gateway, DNS; then what the policy leaves open
    anyone else's network ─► agent (forward)       nothing
    agent ─► another agent (the same bridge)       nothing, whatever the policy opens

Every packet is judged by these rules, not only the first of a connection: what was opened while somebody had flushed
the rules ends when they are put back. Only answers to what the host itself opened towards an agent pass unseen.

Addresses are those that the agent asked for (`ct original`) where they open something, because a published port of the
gateway is rewritten to its container's address before these rules see it; and both, the asked and the rewritten, where
they close. A drop here is final, whatever Docker's or the operator's own rules say; an accept only passes on to those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from hatchway.addresses import NEVER, PRIVATE, Opening

PRIORITY = -10
"""Before the `filter` chains (0) of Docker and of most firewalls, after any rewriting of addresses (-100)."""


@dataclass(frozen=True)
class Endpoint:
    """One address and TCP port."""

    address: IPv4Address
    port: int


@dataclass(frozen=True)
class Openings:
    """What the agents of one network reach. `allow` None: the internet, without private networks."""

    gateways: Sequence[Endpoint]
    nameservers: Sequence[IPv4Address] = ()
    host_ports: Sequence[int] = ()
    allow: Sequence[Opening] | None = None
    closed: Sequence[Endpoint] = ()
    """Endpoints that stay closed whatever else is open: those of the database and of Temporal."""


@dataclass(frozen=True)
class RuleSet:
    """One table, as it is loaded, and what must be found in it again."""

    table: str
    text: str
    """For `nft -f`: replaces the table in one step, so there is no moment without rules."""
    marks: tuple[str, ...]
    """Each rule's comment, in order."""


def rule_set(table: str, bridge: str, openings: Openings) -> RuleSet:
    """The rules for the agents behind `bridge`."""
    chains = {
        "known": ("", _known(openings)),
        "to_host": ("", _to_host(openings)),
        "elsewhere": ("", _elsewhere(openings)),
        "input": (_hook("input"), (f'iifname "{bridge}" goto to_host',)),
        "forward": (
            _hook("forward"),
            (
                f'iifname "{bridge}" oifname "{bridge}" drop',
                f'iifname "{bridge}" goto elsewhere',
                f'oifname "{bridge}" ct direction original drop',
            ),
        ),
    }
    lines = [f"add table inet {table}", f"delete table inet {table}", f"table inet {table} {{"]
    marks: list[str] = []
    for name, (head, rules) in chains.items():
        lines += [f"  chain {name} {{", *([f"    {head}"] if head else [])]
        for number, rule in enumerate(rules, 1):
            marks.append(f"{name} {number}")
            lines.append(f'    {rule} comment "{marks[-1]}"')
        lines.append("  }")
    return RuleSet(table, "\n".join([*lines, "}", ""]), tuple(marks))


def hooks() -> tuple[str, str]:
    """How a listing shows that the two entry chains are where packets pass."""
    return _hook("input"), _hook("forward")


def _hook(name: str) -> str:
    return f"type filter hook {name} priority {PRIORITY}; policy accept;"


def _known(openings: Openings) -> Iterator[str]:
    """What is open on the host and elsewhere alike."""
    yield "ct direction reply accept"
    yield "meta nfproto != ipv4 drop"
    for gateway in dict.fromkeys(openings.gateways):
        yield f"meta l4proto tcp ct original ip daddr {gateway.address} ct original proto-dst {gateway.port} accept"
    if openings.nameservers:
        yield f"ip daddr {_set(openings.nameservers)} meta l4proto {{ tcp, udp }} th dport 53 accept"


def _to_host(openings: Openings) -> Iterator[str]:
    yield "jump known"
    yield from _closed_endpoints(openings)
    if openings.host_ports:
        yield f"meta l4proto {{ tcp, udp }} th dport {_set(openings.host_ports)} accept"
    yield "drop"


def _elsewhere(openings: Openings) -> Iterator[str]:
    yield "jump known"
    yield from _closed(NEVER)
    yield from _closed_endpoints(openings)
    if openings.allow is None:
        yield from _closed(PRIVATE)
        yield "accept"
        return
    for opening in openings.allow:
        port = "" if opening.port is None else f" meta l4proto {{ tcp, udp }} th dport {opening.port}"
        yield f"ip daddr {opening.network} ct original ip daddr {opening.network}{port} accept"
    yield "drop"


def _closed_endpoints(openings: Openings) -> Iterator[str]:
    for endpoint in dict.fromkeys(openings.closed):
        yield f"ip daddr {endpoint.address} tcp dport {endpoint.port} drop"
        yield f"meta l4proto tcp ct original ip daddr {endpoint.address} ct original proto-dst {endpoint.port} drop"


def _closed(networks: Iterable[IPv4Network]) -> Iterator[str]:
    listed = _set(networks)
    yield f"ip daddr {listed} drop"
    yield f"ct original ip daddr {listed} drop"


def _set(members: Iterable[object]) -> str:
    return "{ " + ", ".join(str(member) for member in dict.fromkeys(members)) + " }"
