"""A worker process that stops dead at a named point of a bare-metal spawn, so that the test can kill it right there."""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from hatchway.backends import bare_metal_launch
from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.host.records import Records
from tests.contract.backend import silent
from tests.contract.bare_metal import INSTALLATION, bare_metal_spec


def reach(*_: object) -> None:
    """Tell the test that the point is reached, and never go on."""
    print("reached", flush=True)
    threading.Event().wait()


class ShortPipe:
    """Standard input of the shim that takes only the first half of the order."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    def __enter__(self) -> ShortPipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()

    def write(self, data: bytes) -> None:
        self.pipe.write(data[: len(data) // 2])
        self.pipe.flush()
        reach()


def record_made() -> Any:
    return mock.patch.object(Records, "write_intent", reach)


def intent_written() -> Any:
    write_intent = Records.write_intent

    def written(*args: Any) -> None:
        write_intent(*args)
        reach()

    return mock.patch.object(Records, "write_intent", written)


def _after_fork(then: Callable[[Any], None]) -> Any:
    popen = subprocess.Popen

    def forked(*args: Any, **kwargs: Any) -> Any:
        process = popen(*args, **kwargs)
        then(process)
        return process

    return mock.patch.object(subprocess, "Popen", forked)


def shim_forked() -> Any:
    return _after_fork(reach)


def half_of_the_order_sent() -> Any:
    def shorten(process: Any) -> None:
        process.stdin = ShortPipe(process.stdin)

    return _after_fork(shorten)


def order_sent() -> Any:
    return mock.patch.object(select, "select", reach)


def answer_read() -> Any:
    return mock.patch.object(bare_metal_launch, "_check", reach)


POINTS = {
    "record made": record_made,
    "intent written": intent_written,
    "shim forked": shim_forked,
    "half of the order sent": half_of_the_order_sent,
    "order sent": order_sent,
    "answer read": answer_read,
}


async def main() -> None:
    order = json.load(sys.stdin)
    backend = BareMetalBackend("m-test", Path(order["state_dir"]), INSTALLATION)
    with POINTS[order["point"]]():
        await backend.spawn(bare_metal_spec(order["agent_id"], order["command"], order["env"]), silent)
    raise AssertionError(f"the spawn went past {order['point']!r}")


if __name__ == "__main__":
    asyncio.run(main())
