"""The services that tests may need beyond this environment, and what is said about tests whose service is missing.

`@pytest.mark.needs("docker", "registry")` on a test that cannot run without them. A missing service takes its tests out
of the run, and one line at the end says how many and why. `HATCHWAY_TEST_REQUIRE=docker,registry` turns a missing one
into an error before the first test: CI sets it, so that nothing goes unrun there unnoticed.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from tests.support.streams import Stream, is_stream, tell, told

REQUIRE_VARIABLE = "HATCHWAY_TEST_REQUIRE"
POSTGRES15_BIN = Path("/usr/lib/postgresql/15/bin")


def _docker() -> str | None:
    try:
        client = docker.from_env(timeout=5)
    except DockerException as e:
        return f"no Docker engine answers ({type(e).__name__}): start dockerd, or set DOCKER_HOST"
    client.close()
    return None


def _registry() -> str | None:
    missing = [c for c in ("docker-registry", "htpasswd") if shutil.which(c) is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH (Debian: docker-registry, apache2-utils)"
    return _docker()


def _postgres15() -> str | None:
    if not (POSTGRES15_BIN / "initdb").is_file():
        return f"no {POSTGRES15_BIN}/initdb (Debian 12: postgresql)"
    return None


def compose_binary() -> Path:
    """The compose v2 command of the test extra: it is also a plugin of the docker command line."""
    return Path(sys.executable).parent / "docker-compose"


def _compose() -> str | None:
    if not compose_binary().is_file():
        return "no docker-compose beside this Python: install the test extra"
    if shutil.which("docker") is None:
        return "no docker command on PATH (Debian: docker.io)"
    return _docker()


def _debootstrap() -> str | None:
    return None if shutil.which("debootstrap") else "no debootstrap on PATH (Debian: debootstrap)"


def _pgbouncer() -> str | None:
    return None if shutil.which("pgbouncer") else "no pgbouncer on PATH (Debian: pgbouncer)"


def _cc() -> str | None:
    return None if shutil.which("cc") else "no C compiler on PATH (Debian: gcc, libc6-dev)"


def _root() -> str | None:
    return None if os.geteuid() == 0 else "not root: only root can run an agent as another user"


def _nftables() -> str | None:
    tools = ("nft", "ip", "iptables")
    missing = [c for c in tools if shutil.which(c, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None]
    if missing:
        return f"no {' and no '.join(missing)} on PATH (Debian: nftables, iproute2, iptables)"
    return _root()


def _cgroups() -> str | None:
    # Version 1 has a tree for each controller; with version 2 there is one, whose files stand at its top.
    memory, unified = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/cgroup.controllers")
    if os.geteuid() != 0 or not os.access(memory if memory.is_dir() else unified.parent, os.W_OK):
        return "no control groups that this user may make (they need root, and a writable /sys/fs/cgroup)"
    return None


PROBES: Mapping[str, Callable[[], str | None]] = {
    name: functools.cache(probe)
    for name, probe in {
        "docker": _docker,
        "registry": _registry,
        "postgres15": _postgres15,
        "compose": _compose,
        "debootstrap": _debootstrap,
        "root": _root,
        "pgbouncer": _pgbouncer,
        "cc": _cc,
        "nftables": _nftables,
        "cgroups": _cgroups,
    }.items()
}
"""Each answers None when the service is there, else one clause that says what is missing. Asked once a run."""

FIXTURES = {"docker_client": "docker", "registry_server": "registry", "pooler": "pgbouncer"}
"""Fixture -> the service behind it: a test that uses one need not say so again."""

NOT_RUN = pytest.StashKey[Counter[tuple[str, str]]]()
"""(service, why) -> how many tests did not run for it."""

ITEMS_NOT_RUN = pytest.StashKey[list[pytest.Item]]()


def required_services(value: str) -> list[str]:
    """The names in HATCHWAY_TEST_REQUIRE. Raises UsageError for one that no probe knows."""
    names = [n for n in (part.strip() for part in value.split(",")) if n]
    unknown = [n for n in names if n not in PROBES]
    if unknown:
        raise pytest.UsageError(
            f"{REQUIRE_VARIABLE} names {', '.join(unknown)}, but only these are known: {', '.join(PROBES)}"
        )
    return names


def pytest_configure(config: pytest.Config) -> None:
    config.stash[NOT_RUN] = Counter()
    config.stash[ITEMS_NOT_RUN] = []
    missing = {n: why for n in required_services(os.environ.get(REQUIRE_VARIABLE, "")) if (why := PROBES[n]())}
    if missing:
        raise pytest.UsageError(
            f"{REQUIRE_VARIABLE} asks for what is not here: " + "; ".join(f"{n}: {why}" for n, why in missing.items())
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Last, so that a conftest.py may say what all of its tests need.
    kept: list[pytest.Item] = []
    for item in items:
        lacking = _lacking(item)
        if lacking is None:
            kept.append(item)
        else:
            config.stash[NOT_RUN][lacking] += 1
            config.stash[ITEMS_NOT_RUN].append(item)
    if len(kept) != len(items):
        config.hook.pytest_deselected(items=config.stash[ITEMS_NOT_RUN])
        items[:] = kept


def _needed(item: pytest.Item) -> list[str]:
    """The services that `item` names, and those that its fixtures cannot do without."""
    named = [service for marker in item.iter_markers("needs") for service in marker.args]
    fixtures = getattr(item, "fixturenames", ())
    return named + [service for fixture, service in FIXTURES.items() if fixture in fixtures]


def _lacking(item: pytest.Item) -> tuple[str, str] | None:
    for service in _needed(item):
        if service not in PROBES:
            raise pytest.UsageError(f"{item.nodeid} needs {service!r}, but only these are known: {', '.join(PROBES)}")
        why = PROBES[service]()
        if why is not None:
            return service, why
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_stream(session.config):
        tell(session.config, "not run", [[*what, n] for what, n in session.config.stash[NOT_RUN].items()])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Stream) -> None:
    # Every stream collects every test, so each of them says the same: the greatest number, not the sum.
    counted: list[tuple[str, str, int]] = told(node, "not run", [])
    node.config.stash[NOT_RUN] |= Counter({(service, why): n for service, why, n in counted})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for (service, why), count in sorted(config.stash[NOT_RUN].items()):
        terminalreporter.write_line(f"did not run: {count} tests need {service}: {why}", yellow=True)
