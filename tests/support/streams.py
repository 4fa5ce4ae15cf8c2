"""A run in several streams (`pytest -n 2`): which tests stay together, and what a stream tells the run that counts.

Most tests wait for a server far longer than they compute, so two streams take little more than half the time of one.
Each stream starts servers of its own. Tests of one file stay together, for they share what that file sets up; so do all
that use what a machine has once.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE = {
    "tests/docker/": "the Docker engine: its networks, its images, its firewall",
    "tests/integration/backends/": "the processes and control groups of this host",
    "tests/integration/host/": "the processes and control groups of this host",
}
"""Path -> what its tests would take from each other in two streams."""

T = TypeVar("T")


class Stream(Protocol):
    """One process of a run, as the run that counts sees it."""

    @property
    def config(self) -> pytest.Config: ...


def is_stream(config: pytest.Config) -> bool:
    """Whether this process runs a part of the tests for another one that counts."""
    return hasattr(config, "workeroutput")


def tell(config: pytest.Config, what: str, value: object) -> None:
    """From a stream, at its end. `value` is made of lists, strings and numbers."""
    config.workeroutput[what] = value  # type: ignore[attr-defined]


def told(node: Stream, what: str, otherwise: T) -> T:
    """What a stream that has ended told under this name; `otherwise` from one that did not live to tell."""
    output: dict[str, Any] = getattr(node, "workeroutput", {})
    value: T = output.get(what, otherwise)
    return value


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out whole files, and whole groups of files that need the same thing of the machine."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((what for start, what in ALONE.items() if path.startswith(start)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Together(config, log)
