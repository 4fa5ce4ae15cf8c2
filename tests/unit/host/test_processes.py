"""Which processes are an agent's, on a machine that hides those of other users (`mount -o hidepid=1 /proc`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from hatchway.host import processes, shim
from hatchway.host.identity import ProcessId, ProcessStat, process_stat

AGENT_ID = "scaler-hidden-neighbours"


@pytest.fixture
def agent() -> Iterator[ProcessId]:
    """A process that bears the agent's id."""
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "KICI_AGENT_ID": AGENT_ID}) as process:
        found = process_stat(process.pid)
        assert found is not None
        yield found.id
        process.kill()


def _hidden(monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    """Process 1 is another's or one's own, and may not be read, as the kernel puts it."""

    def stat(pid: int) -> ProcessStat | None:
        if pid == 1:
            raise PermissionError(1, "Operation not permitted", "/proc/1/stat")
        return process_stat(pid)

    monkeypatch.setattr(processes, "process_stat", stat)
    monkeypatch.setattr(processes, "_owner_of", lambda _: owner, raising=False)


def test_a_process_of_another_user_that_may_not_be_read_is_none_of_an_agent_s(
    agent: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hidden(monkeypatch, os.geteuid() + 1)

    assert processes.survivors_of(agent, AGENT_ID) == [agent]


def test_one_s_own_process_that_may_not_be_read_leaves_in_doubt_what_survives(
    agent: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hidden(monkeypatch, os.geteuid())

    with pytest.raises(PermissionError):
        processes.survivors_of(agent, AGENT_ID)


def test_the_supervisor_looks_for_its_children_past_what_it_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(shim, "open", refuse, raising=False)

    assert shim._parent_of(1) is None
