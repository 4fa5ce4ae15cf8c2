"""The nftables of this worker's network namespace: loading one network's table, and proving that it stands.

A table is compared with what nft itself said right after it had been loaded: releases of nft spell the same rule
differently, and the kernel's answer is the only one that counts. Blocking: each call is a few milliseconds in a thread.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Sequence

import structlog

from hatchway.backends.container_answers import answers_table, merged, record
from hatchway.backends.container_rules import Openings, RuleSet, hooks
from hatchway.errors import HatchwayError

log = structlog.get_logger(__name__)

TIMEOUT = 10.0
"""Seconds for one nft call. It takes milliseconds; the kernel's table lock may be held by somebody else's long load."""
_SBIN = "/usr/sbin:/sbin:/usr/local/sbin"
"""Where nft is, and where the PATH of a service often does not lead."""


class RulesMissing(HatchwayError):
    """Rules cannot be installed, or are not what was installed. Nothing may run behind them."""


class FirewallUnusable(RulesMissing):
    """This worker cannot install any rules: it has no nft, or not the right to use it. Says what to give it."""


class Firewall:
    """Tables of this process's network namespace. Safe to use from several threads."""

    def __init__(self, nft: str | None = None) -> None:
        self._nft = nft
        self._loading = threading.Lock()
        self._known: dict[str, tuple[RuleSet, str]] = {}
        """By table, what was loaded and how nft listed it then."""

    def check(self) -> None:
        """Raise FirewallUnusable unless rules can be installed from here."""
        self._run(["--check", "--file", "-"], "add table inet hatchway_check\n")

    def ensure(self, rules: RuleSet) -> None:
        """The table stands with these rules when this returns: as it was, put back, or loaded anew.

        Raises RulesMissing.
        """
        with self._loading:
            known = self._known.get(rules.table)
            if known is not None and known[0] == rules:
                found = self._listed(rules.table)
                if found == known[1]:
                    return
                log.warning("network_rules_put_back", table=rules.table, were="altered" if found else "gone")
            self._run(["--file", "-"], rules.text)
            listing = self._listed(rules.table)
            if listing is None or not _holds(listing, rules):
                raise RulesMissing(
                    f"the firewall took the rules of {rules.table} and does not show them: "
                    "see `nft list ruleset` on this worker's machine, and what else manages its firewall"
                )
            self._known[rules.table] = (rules, listing)

    def record(self, table: str, openings: Openings) -> None:
        """Tell the other workers of this network what this one was told. Raises RulesMissing."""
        self._run(["--file", "-"], record(table, openings))

    def with_all_answers(self, table: str, openings: Openings) -> Openings:
        """With what the other workers of this network were told. Raises RulesMissing."""
        return merged(openings, self._listed(answers_table(table)) or "")

    def verify(self, table: str) -> None:
        """Raise RulesMissing unless the table is, to the letter, what `ensure` left there."""
        known = self._known.get(table)
        if known is None or self._listed(table) != known[1]:
            raise RulesMissing(
                f"the firewall rules {table} were changed or removed since they were installed: "
                "they are put back at the next attempt; see what else manages this machine's firewall"
            )

    def remove(self, table: str) -> None:
        """The table is gone when this returns. Absent already is as good."""
        with self._loading:
            self._known.pop(table, None)
            self._run(["--file", "-"], f"add table inet {table}\ndelete table inet {table}\n")

    def tables(self, prefix: str) -> list[str]:
        """The tables whose name begins with `prefix`."""
        names = re.findall(r"^table inet (\S+)$", self._run(["list", "tables", "inet"]), re.MULTILINE)
        return [name for name in names if name.startswith(prefix)]

    def _listed(self, table: str) -> str | None:
        """The table as nft shows it, without counters; None where there is none."""
        try:
            return self._run(["--numeric", "--stateless", "list", "table", "inet", table])
        except FirewallUnusable:
            raise
        except RulesMissing as e:
            if "No such file or directory" in str(e):
                return None
            raise

    def _run(self, arguments: Sequence[str], text: str = "") -> str:
        program = self._nft or shutil.which("nft") or shutil.which("nft", path=_SBIN)
        if program is None:
            raise FirewallUnusable(
                "this worker's machine has no nft, which isolated networks need: install nftables there, or say "
                "`networkIsolation: false` to run agents on the engine's own network"
            )
        try:
            done = subprocess.run(
                [program, *arguments], input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            raise RulesMissing(
                f"nft did not answer within {TIMEOUT:g} s: see what holds this machine's firewall"
            ) from None
        except OSError as e:
            raise FirewallUnusable(f"nft cannot be run ({e}), which isolated networks need: see {program}") from None
        if done.returncode == 0:
            return done.stdout
        said = " ".join(done.stderr.split())[:300] or f"exit {done.returncode}"
        if "Operation not permitted" in said:
            raise FirewallUnusable(
                "this worker may not change its machine's firewall, which isolated networks need: run it as root or "
                "with CAP_NET_ADMIN, or say `networkIsolation: false` to run agents on the engine's own network"
            )
        raise RulesMissing(f"nft refused what isolated networks need: {said}")


def _holds(listing: str, rules: RuleSet) -> bool:
    """Whether every rule stands, in order and no other one, and both entry chains are hooked in."""
    return tuple(re.findall(r'comment "([^"]*)"$', listing, re.MULTILINE)) == rules.marks and all(
        hook in listing for hook in hooks()
    )
