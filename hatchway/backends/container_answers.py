"""What the workers of one engine have found out for a network's rules: kept in its firewall, beside the rules. Pure.

A rule opens or closes addresses, and addresses come from name servers, which may answer each worker differently: by its
place, in turn, or by its own resolv.conf. Each worker records what it was told in one table for each network, with a
time limit, and makes the rules of all that stands there. So all make the same rules, and none takes away what an agent
of another one was told to use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address

from hatchway.backends.container_rules import Endpoint, Openings

KEPT_S = 604_800
"""Seconds, from the last time that a worker was told so: the longest lifetime that a configuration can set. An agent
keeps the name servers and the gateway's address of its start, and its worker may have gone since.

The rules themselves have no limit: without any worker they stay as they are.
"""

_SETS = {"opened": "ipv4_addr . inet_service", "asked": "ipv4_addr", "closed": "ipv4_addr . inet_service"}
_SET = re.compile(r"set (\w+) \{(.*?)\n\t\}", re.DOTALL)
_ELEMENT = re.compile(r"(\d+\.\d+\.\d+\.\d+)(?: \. (\d+))?")


def answers_table(table: str) -> str:
    """Its name, for the table with the rules: it begins and ends as that one's, and so is removed like it."""
    head, _, token = table.rpartition("_")
    return f"{head}_answers_{token}"


def record(table: str, openings: Openings) -> str:
    """For `nft -f`, in one step: these stand, for KEPT_S from now. What others have recorded stays."""
    name = answers_table(table)
    lines = [f"add table inet {name}"]
    for kind, type_ in _SETS.items():
        lines.append(f"add set inet {name} {kind} {{ type {type_} ; flags timeout ; }}")
    for kind, members in _written(openings).items():
        if members:
            plain = ", ".join(members)
            # Adding one that is there leaves its limit as it was, and deleting one that is not there is an error.
            lines.append(f"add element inet {name} {kind} {{ {plain} }}")
            lines.append(f"delete element inet {name} {kind} {{ {plain} }}")
            limited = ", ".join(f"{member} timeout {KEPT_S}s" for member in members)
            lines.append(f"add element inet {name} {kind} {{ {limited} }}")
    return "\n".join([*lines, ""])


def merged(openings: Openings, listing: str) -> Openings:
    """With what all workers have recorded, as nft lists that table. In an order of its own: the same for all."""
    heard = {kind: _ELEMENT.findall(body) for kind, body in _SET.findall(listing)}
    return replace(
        openings,
        gateways=_endpoints(openings.gateways, heard.get("opened", [])),
        nameservers=sorted({*openings.nameservers, *(IPv4Address(at) for at, _ in heard.get("asked", []))}),
        closed=_endpoints(openings.closed, heard.get("closed", [])),
    )


def _written(openings: Openings) -> dict[str, list[str]]:
    return {
        "opened": [f"{one.address} . {one.port}" for one in dict.fromkeys(openings.gateways)],
        "asked": [str(address) for address in dict.fromkeys(openings.nameservers)],
        "closed": [f"{one.address} . {one.port}" for one in dict.fromkeys(openings.closed)],
    }


def _endpoints(own: Iterable[Endpoint], heard: Iterable[tuple[str, str]]) -> list[Endpoint]:
    everyone = {*own, *(Endpoint(IPv4Address(at), int(port)) for at, port in heard)}
    return sorted(everyone, key=lambda one: (one.address, one.port))
