"""A stack that meets a machine in use."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hatchway.dev.child import ChildError
from hatchway.dev.ports import free_port
from hatchway.dev.stack import Ports, Stack
from tests.support.postgres_fixtures import private_directory

CONFIG = {
    "version": 1,
    "scalers": [
        {"name": "a", "type": "bare-metal", "maxAgents": 1, "labelSets": [{"labels": ["linux"], "user": "nobody"}]}
    ],
}


@pytest.fixture
def directory() -> Iterator[Path]:
    with private_directory("hatchway-stack-") as path:
        path.chmod(0o711)
        (path / "config.yaml").write_text(json.dumps(CONFIG))
        yield path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_free_port_that_is_taken_meanwhile_is_exchanged_for_another(
    directory: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = iter([taken])
    monkeypatch.setattr("hatchway.dev.stack.free_port", lambda host: next(offered, None) or free_port(host))
    stack = Stack(directory / "stack", directory / "config.yaml")

    await stack.start()
    await stack.stop()

    assert not stack.gateway_url.endswith(f":{taken}")


async def test_a_port_that_was_asked_for_and_is_taken_is_an_error_and_leaves_nothing_running(
    directory: Path, taken: int
) -> None:
    stack = Stack(directory / "stack", directory / "config.yaml", ports=Ports(gateway=taken))

    with pytest.raises(ChildError, match=f"cannot listen on 127.0.0.1:{taken}"):
        await stack.start()

    again = Stack(directory / "stack", directory / "config.yaml")
    await again.start()
    await again.stop()
