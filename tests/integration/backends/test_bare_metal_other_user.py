"""Two workers of one machine that run as different users: neither may say of the other's agents that they are gone."""

from __future__ import annotations

import asyncio
import codecs
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.errors import DestroyError, SpawnCode, TransientSpawnError
from tests.contract.backend import destroy, environment_for, fresh_agent_id, silent
from tests.contract.bare_metal import bare_metal_spec
from tests.support.namespaces import until

ONE, OTHER = "daemon", 65533
"""Whose worker made the agent, and the uid of the worker that is asked of it."""


@pytest.fixture
def others_agent() -> Iterator[str]:
    """An agent's id, whose supervisor another user's worker has started. Its record is in that worker's directory."""
    agent_id = fresh_agent_id()
    script = "sleep 600; exit"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script, "/opt/worker/shim.py", agent_id], user=ONE, start_new_session=True
    )
    yield agent_id
    os.killpg(process.pid, 9)
    process.wait()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hatchway-other-") as directory:
        os.chown(directory, OTHER, OTHER)
        yield Path(directory)


def _as_the_other_user(state_dir: Path, ask: Callable[[BareMetalBackend], Coroutine[Any, Any, object]]) -> str:
    """What a worker of the other user is answered, in a process of its own: a user cannot be taken back."""
    codecs.lookup("ascii")  # loaded while this user may still read where Python is installed
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            said = asyncio.run(_asked(state_dir, ask))
        except BaseException as e:  # whatever it is, the parent reads it, and this process ends without pytest's end
            said = f"{type(e).__name__}: {e}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


async def _asked(state_dir: Path, ask: Callable[[BareMetalBackend], Coroutine[Any, Any, object]]) -> str:
    backend = BareMetalBackend("host-1", state_dir, "installation-1")
    try:
        return str(await ask(backend))
    except (DestroyError, TransientSpawnError) as e:
        return f"{type(e).__name__} {getattr(e, 'code', '')}: {e}"


async def _visible(agent_id: str) -> None:
    await until(lambda: any(agent_id.encode() in line.read_bytes() for line in Path("/proc").glob("[0-9]*/cmdline")))


def test_a_teardown_is_not_confirmed_while_another_user_s_worker_runs_the_agent(
    others_agent: str, state_dir: Path
) -> None:
    asyncio.run(_visible(others_agent))

    said = _as_the_other_user(state_dir, lambda backend: destroy(backend, others_agent))

    assert said.startswith("DestroyError")
    assert "cannot be confirmed gone" in said
    assert "as another user" in said


def test_a_spawn_is_not_repeated_beside_another_user_s_agent(others_agent: str, state_dir: Path) -> None:
    asyncio.run(_visible(others_agent))
    spec = bare_metal_spec(others_agent, [sys.executable, "--version"], environment_for(others_agent))

    said = _as_the_other_user(state_dir, lambda backend: backend.spawn(spec, silent))

    assert said.startswith(f"TransientSpawnError {SpawnCode.DAEMON_UNAVAILABLE}")
    assert "as another user" in said


def test_a_stranger_s_process_stands_in_no_teardown_s_way(others_agent: str, state_dir: Path) -> None:
    said = _as_the_other_user(state_dir, lambda backend: destroy(backend, fresh_agent_id()))

    assert said == "None"
