"""A worker process that stops dead at a named point of a container spawn, so that the test can kill it right there."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any
from unittest import mock

import docker

from hatchway.backends.container import ContainerBackend
from tests.contract.backend import silent
from tests.docker.backends.contract import container_spec
from tests.docker.backends.rig import HOST_ID


def reach(*_: object, **__: object) -> None:
    """Tell the test that the point is reached, and never go on."""
    print("reached", flush=True)
    threading.Event().wait()


def _before(name: str) -> Any:
    return mock.patch.object(docker.APIClient, name, side_effect=reach)


def _after(name: str) -> Any:
    """The engine did it, and its answer never arrives."""
    call = getattr(docker.APIClient, name)

    def answered(*args: Any, **kwargs: Any) -> None:
        call(*args, **kwargs)
        reach()

    return mock.patch.object(docker.APIClient, name, answered)


POINTS = {
    "image looked up": lambda: _after("inspect_image"),
    "create not sent": lambda: _before("create_container"),
    "created, reply lost": lambda: _after("create_container"),
    "start not sent": lambda: _before("start"),
    "started, reply lost": lambda: _after("start"),
}


async def main() -> None:
    order = json.load(sys.stdin)
    backend = ContainerBackend(HOST_ID, None, order["installation"])
    with POINTS[order["point"]]():
        spec = container_spec(order["agent_id"], order["image"], order["env"], order["installation"])
        await backend.spawn(spec, silent)
    raise AssertionError(f"the spawn went past {order['point']!r}")


if __name__ == "__main__":
    asyncio.run(main())
