"""Links that lose every packet: nothing is refused and nothing breaks, it only does not arrive.

A proxy cannot do that: it accepts a connection and takes in what is sent, where a lost network leaves a connect without
an answer, and a sender that tries again after 0.2 s, 0.6 s, 1.4 s, 3 s, … The rules stand in the network namespace of
this process, which must be one of the test's own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

LOSE_S = 2.5
"""Longer than two heartbeats. What was sent meanwhile is sent again after 3 s, which is shorter than every window."""
TABLE = "hatchway_chaos"
RULES = f"""
table inet {TABLE} {{
    set lost {{ type inet_service; }}
    chain out {{
        type filter hook output priority 0;
        tcp dport @lost counter drop
        tcp sport @lost counter drop
    }}
}}
"""


class Firewall:
    def __init__(self) -> None:
        _nft("-f", "-", given=RULES)

    def lose(self, ports: Iterable[int]) -> None:
        """From now on no packet from or to these TCP ports arrives."""
        self._change("add", ports)

    def let_pass(self, ports: Iterable[int]) -> None:
        self._change("delete", ports)

    def lost(self) -> int:
        """Packets that have not arrived."""
        words = _nft("list", "chain", "inet", TABLE, "out").split()
        return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")

    def _change(self, verb: str, ports: Iterable[int]) -> None:
        _nft(verb, "element", "inet", TABLE, "lost", "{", ", ".join(map(str, ports)), "}")


def _nft(*arguments: str, given: str = "") -> str:
    done = subprocess.run(["nft", *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
