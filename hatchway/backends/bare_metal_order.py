"""What a bare-metal agent is started as: its user, its command, its environment."""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from hatchway.backends.base import SpawnSpec
from hatchway.backends.errors import redaction_forms
from hatchway.config.schema import LabelSet
from hatchway.errors import PermanentSpawnError, SpawnCode
from hatchway.host.cgroups import Entrance

AGENT = Path(__file__).parents[1] / "agent.py"
SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_LANG = "C.UTF-8"
LOG_BYTES = 10 * 1024 * 1024
PROBE_TIMEOUT = 10.0  # seconds

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Account:
    """The user that an agent runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def account_of(label_set: LabelSet, agent_id: str) -> Account | None:
    """Whom the agent has to become; None when it stays what the worker is.

    Only root can change the user. A worker that is not root runs every agent as itself, and says so when a label set
    asks for somebody else. Raises PermanentSpawnError(invalid_spec).
    """
    if os.geteuid() != 0:
        if label_set.user is not None and label_set.user not in (str(os.geteuid()), _own_name()):
            log.warning("user ignored: the worker is not root", agent_id=agent_id, user=label_set.user)
        return None
    if label_set.user is None:
        if label_set.run_as_root:
            return None
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC,
            "this worker is root, so the label set must name the `user` that its agents run as; "
            "`runAsRoot: true` insists on root",
        )
    account = _lookup(label_set.user)
    if account.uid == 0 and not label_set.run_as_root:
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"user {label_set.user!r} is root: name another one, or say `runAsRoot: true`"
        )
    return account


def _own_name() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def _lookup(user: str) -> Account:
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise PermanentSpawnError(
            SpawnCode.INVALID_SPEC, f"this host has no user {user!r}: create it, or correct the label set's `user`"
        ) from None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(groups))


def command_of(spec: SpawnSpec, account: Account | None, directory: Path) -> list[str]:
    """The agent's argv. Without a `command` it is this installation's reference agent, copied next to its record.

    Copied, because the installation may lie where the agent's user cannot read (a home directory), and may be upgraded
    while the agent runs. Raises PermanentSpawnError(no_agent), or OSError.
    """
    if spec.label_set.command is not None:
        if not spec.label_set.command or not spec.label_set.command[0]:
            raise PermanentSpawnError(SpawnCode.INVALID_SPEC, "the label set's `command` is empty: it needs a program")
        return list(spec.label_set.command)
    python = _python_for(account)
    if python is None:
        raise PermanentSpawnError(
            SpawnCode.NO_AGENT,
            f"user {account.name if account else _own_name()!r} can run neither {sys.executable} nor any of "
            f"{', '.join(SYSTEM_PYTHONS)} as Python 3.8 or newer: install python3, or give the label set a `command`",
        )
    copy = directory / "agent.py"
    copy.write_bytes(AGENT.read_bytes())
    copy.chmod(0o644)
    return [python, str(copy)]


@functools.lru_cache(maxsize=64)
def _python_for(account: Account | None) -> str | None:
    """A Python 3.8 or newer that this user can really run: tried as that user, for its libraries count as well."""
    for python in (sys.executable, *SYSTEM_PYTHONS):
        try:
            subprocess.run(
                [python, "-I", "-c", "import sys, json, http.client; sys.exit(sys.version_info < (3, 8))"],
                check=True,
                cwd="/",
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=PROBE_TIMEOUT,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=account.groups if account else None,
            )
        except (OSError, subprocess.SubprocessError):
            continue  # this one not: the next may do, and none is the caller's error to raise
        return python
    return None


def environment_of(spec: SpawnSpec, home: Path) -> dict[str, str]:
    """The whole environment, built from nothing: PATH, HOME, LANG, and what the spec brings. None of the worker's own.

    HOME is the agent's own directory, not the user's: what one job leaves in ~/.docker or ~/.npmrc is not for the next.
    """
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise PermanentSpawnError(
                SpawnCode.INVALID_SPEC,
                f"environment variable {name!r} cannot be passed to a process: check its name and value",
            )
    return {"PATH": BASE_PATH, "HOME": str(home), "LANG": BASE_LANG, **spec.env}


def order_of(
    spec: SpawnSpec, account: Account | None, directory: Path, boot_id: str, entrance: Entrance | None
) -> dict[str, Any]:
    """What the shim is told, over its standard input only: it holds the claim code. Makes the agent's own directory."""
    home = directory / "work"
    home.mkdir(mode=0o700, exist_ok=True)
    if account is not None:
        os.chown(home, account.uid, account.gid)
    return {
        "argv": command_of(spec, account, directory),
        "env": environment_of(spec, home),
        "redact": redaction_forms(spec.secret_values),
        "uid": account.uid if account else None,
        "gid": account.gid if account else None,
        "groups": account.groups if account else None,
        "home": str(home),
        "directory": spec.label_set.working_directory,
        "grace": spec.stop_grace.total_seconds(),
        "log_bytes": LOG_BYTES,
        "boot_id": boot_id,
        "cgroup": entrance.order() if entrance is not None else None,
    }
