"""The environment that an agent starts with: who may set which variable, and who wins. Pure: no I/O.

Later layers win over earlier ones:

1. what the agent needs to report in (`KICI_ORCHESTRATOR_URL`, `KICI_AGENT_ID`, `KICI_LABELS`, …),
2. the worker's own `KICI_AGENT_ENV_*`, prefix stripped: the operator's word for every agent of that worker,
3. the label set's `env`,
4. the job's `env`.

`KICI_*` and `HATCHWAY_*` belong to the product: the label set may set `HATCHWAY_AGENT_COMMAND`, and the job none of
them, so that no job can pose as another agent or send its agent to a gateway of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.foreign_json import parse_foreign

AGENT_COMMAND = "HATCHWAY_AGENT_COMMAND"
WORKER_PREFIX = "KICI_AGENT_ENV_"
OVERRIDABLE_BY_WORKER = frozenset({"KICI_ORCHESTRATOR_URL"})
"""The one variable of the first layer that is about the network, which the operator knows, not about the agent."""

_RESERVED = ("KICI_", "HATCHWAY_")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_ENTRY = 128 * 1024 - 1
"""Bytes of `NAME=value`: Linux takes 128 KiB for one string, its closing NUL included (MAX_ARG_STRLEN)."""


def worker_agent_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The worker's own `KICI_AGENT_ENV_*` variables, without the prefix."""
    return {
        name.removeprefix(WORKER_PREFIX): value
        for name, value in environ.items()
        if name.startswith(WORKER_PREFIX) and name != WORKER_PREFIX
    }


def url_on_record(of_scaler: str, kici_agent_env: Mapping[str, str]) -> str:
    """The URL that an agent will go by, as the database keeps it. Empty where a password may stand in it."""
    url = kici_agent_env.get("KICI_ORCHESTRATOR_URL", of_scaler)
    return "" if "@" in url else url


def compose_agent_env(
    base: Mapping[str, str],
    kici_agent_env: Mapping[str, str],
    label_set_env: Mapping[str, str],
    job_env: Mapping[str, str],
) -> dict[str, str]:
    """The agent's whole environment. All values are resolved: this is the worker's memory only.

    `base` is what the agent needs to report in, claim code included. Raises PermanentSpawnError(invalid_spec) that
    names the variable and whose it is, never a value.
    """
    layers = (
        (f"the worker's {WORKER_PREFIX}*", kici_agent_env, lambda name: _worker_objection(name, base)),
        ("the label set's env", label_set_env, label_set_objection),
        ("the job's env", job_env, job_objection),
    )
    env = dict(base)
    for owner, variables, objection in layers:
        for name, value in variables.items():
            why = objection(name) or _value_objection(name, value)
            if why is not None:
                raise PermanentSpawnError(SpawnCode.INVALID_SPEC, f"{owner}: {name} {why}")
            env[name] = value
    return env


def job_objection(name: str) -> str | None:
    """Why a job may not set this variable, as the end of a sentence; None when it may."""
    return _name_objection(name) or _reserved_objection(name)


def label_set_objection(name: str) -> str | None:
    """Why a label set may not set this variable, as the end of a sentence; None when it may."""
    if name == AGENT_COMMAND:
        return None
    return job_objection(name)


def agent_command_objection(value: str) -> str | None:
    """Why this is no HATCHWAY_AGENT_COMMAND, as the end of a sentence; None when it is one."""
    try:
        command = parse_foreign(value)
    except ValueError:
        command = None
    if isinstance(command, list) and command and all(isinstance(part, str) for part in command) and command[0]:
        return None
    return """is not a JSON array of strings, as in '["/bin/sh", "-c", "make test"]'"""


def _worker_objection(name: str, base: Mapping[str, str]) -> str | None:
    if name in base and name not in OVERRIDABLE_BY_WORKER:
        return "is the agent's own and cannot be set for all agents"
    return _name_objection(name)


def _name_objection(name: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "is no variable name: letters, digits and underscores, not starting with a digit"
    return None


def _reserved_objection(name: str) -> str | None:
    # Folded, because Windows agents and some shells know no case in names.
    if name.upper().startswith(_RESERVED):
        return "is refused: names that start with KICI_ or HATCHWAY_ are reserved"
    return None


def _value_objection(name: str, value: str) -> str | None:
    if "\0" in value:
        return "holds a NUL byte, which no environment can carry"
    if len(f"{name}={value}".encode(errors="surrogateescape")) > _MAX_ENTRY:
        return "is longer than the 128 KiB that Linux takes for one variable"
    if name == AGENT_COMMAND:
        return agent_command_objection(value)
    return None
