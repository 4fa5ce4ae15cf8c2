"""What an instance runs when it boots: a prelude of ours, then the label set's script. It reads no file but the agent.

The prelude ends the instance when the script has ended or its time is up, prints how it ended to the console, and keeps
the claim out of the console. User data can be read on the instance by whoever runs there, and by whoever may describe
the instance's attributes: so the one secret in it is the claim, which is spent as soon as the agent has reported in.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from hatchway.backends.errors import MASK, redaction_forms

LIMIT = 16 * 1024
"""Bytes that EC2 takes as user data, before base64."""
FOR_THE_ENVIRONMENT = 1024
"""Bytes that a label set must leave for what is only known at the spawn."""

BEGIN = "hatchway-agent-begin"
END = "hatchway-agent-exit"

AGENT = Path(__file__).parents[1] / "agent.py"
PLACEHOLDERS = ("agent", "agentId", "claimCode", "jobId", "labels", "orchestratorUrl", "region", "runId", "scaler")
_PLACEHOLDER = re.compile(r"\{\{\s*([^{}\s]*)\s*\}\}")

_PRELUDE = """\
#!/bin/sh
# An agent of Hatchway: {agent_id}
umask 077
off() {{ shutdown -P now || poweroff || halt -p; }}
HATCHWAY_BOOT=$(mktemp -d) || {{ off; exit 1; }}
{fence}{agent}cat >"$HATCHWAY_BOOT/env" <<'{mark}'
{env}{mark}
cat >"$HATCHWAY_BOOT/run" <<'{mark}'
{run}{mark}
cat >"$HATCHWAY_BOOT/hide" <<'{mark}'
{hide}{mark}
mkfifo "$HATCHWAY_BOOT/out"
echo {begin}
at_once=$(sed -u p </dev/null >/dev/null 2>&1 && echo -u)
sed $at_once -f "$HATCHWAY_BOOT/hide" <"$HATCHWAY_BOOT/out" &
reader=$!
(umask 022; . "$HATCHWAY_BOOT/env"; rm -f "$HATCHWAY_BOOT/env"; . "$HATCHWAY_BOOT/run") >"$HATCHWAY_BOOT/out" 2>&1
code=$?
(sleep 5; kill "$reader") >/dev/null 2>&1 &
wait "$reader"
echo "{end}: $code"
off
"""
"""HATCHWAY_BOOT is a name that no job may set. `command export`, since a variable that is the shell's own, as UID is
bash's, would end the shell that exports it. BusyBox knows no `sed -u`."""

_FENCE = """\
shutdown -P +{minutes} || (sleep {seconds}; off) &
"""

_EMBED = """\
base64 -d >"$HATCHWAY_BOOT/agent.gz" <<'{mark}'
{agent}
{mark}
gunzip -c "$HATCHWAY_BOOT/agent.gz" >"$HATCHWAY_BOOT/agent.py"
"""


@dataclass(frozen=True)
class Boot:
    """What is put into one agent's user data."""

    agent_id: str
    template: str
    env: Mapping[str, str]
    values: Mapping[str, str]
    """Of the placeholders, all but `agent`."""
    claim: str
    lifetime: timedelta | None = None
    """After this the instance ends itself. None: only when its script has ended."""


def unknown_placeholders(template: str) -> list[str]:
    """What stands between `{{` and `}}` and means nothing here."""
    return [name for name in _PLACEHOLDER.findall(template) if name not in PLACEHOLDERS]


def least_size(template: str) -> int:
    """Bytes of user data that this template makes of an agent without any environment."""
    values = dict.fromkeys(PLACEHOLDERS, "")
    return len(user_data(Boot("", template, {}, values, "", timedelta(days=1))).encode())


def user_data(boot: Boot) -> str:
    """The whole script. Every value in it is quoted: none can be run."""
    run = _filled(boot.template, boot.values)
    embeds = any(name == "agent" for name in _PLACEHOLDER.findall(boot.template))
    env = "".join(f"command export {name}={shlex.quote(value)}\n" for name, value in boot.env.items())
    hide = "".join(f"s/{_literal(form)}/{MASK_FOR_SED}/g\n" for form in _forms(boot.claim))
    # A line that nobody can have written by chance: whatever the texts hold, they end where we say.
    mark = "HATCHWAY_" + hashlib.sha256("\0".join((run, env, hide)).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return _PRELUDE.format(
        agent_id=boot.agent_id,
        fence=_fence(boot.lifetime),
        agent=_EMBED.format(mark=mark, agent=embedded_agent()) if embeds else "",
        env=env,
        run=run,
        hide=hide,
        mark=mark,
        begin=BEGIN,
        end=END,
    )


def _forms(claim: str) -> Iterable[str]:
    # sed reads a line at a time.
    return (form for form in redaction_forms([claim]) if "\n" not in form)


MASK_FOR_SED = MASK.replace("/", r"\/")


def _literal(text: str) -> str:
    """A text as a basic regular expression that means just that text."""
    return re.sub(r"([\\.*\[\]^$/])", r"\\\1", text)


def _filled(template: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] == "agent":
            return 'python3 "$HATCHWAY_BOOT/agent.py"'
        return shlex.quote(values[found[1]])

    text = _PLACEHOLDER.sub(value, template)
    return text if text.endswith("\n") else text + "\n"


def _fence(lifetime: timedelta | None) -> str:
    if lifetime is None:
        return ""
    minutes = max(1, -(-int(lifetime.total_seconds()) // 60))
    return _FENCE.format(minutes=minutes, seconds=minutes * 60)


@functools.cache
def embedded_agent() -> str:
    """The reference agent, small enough to travel: gzip in base64, the same bytes each time."""
    return base64.b64encode(gzip.compress(AGENT.read_bytes(), 9, mtime=0)).decode()


@dataclass(frozen=True)
class Printed:
    """What an agent left on its instance's console."""

    text: str
    exit_code: int | None


_CONSOLE = re.compile(r"^\[\s*\d+\.\d+\]\s+cloud-init\[\d+\]:\s?")
"""What systemd puts before each line that a boot script prints."""
_END = re.compile(rf"{END}: (\d{{1,3}})\s*$")


def printed(console: str) -> Printed:
    """The agent's own output, between the marks of the prelude; before the first mark: all of the console."""
    lines = [_CONSOLE.sub("", line) for line in console.replace("\r\n", "\n").split("\n")]
    starts = [number for number, line in enumerate(lines) if line.endswith(BEGIN)]
    if starts:
        lines = lines[starts[-1] + 1 :]
    for number, line in enumerate(lines):
        if found := _END.search(line):
            return Printed("\n".join(lines[:number]).rstrip("\n"), int(found[1]))
    return Printed("\n".join(lines).rstrip("\n"), None)
