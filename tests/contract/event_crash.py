"""A worker process that kills itself at a named point of a spawn by event. Its orders come on standard input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any, NoReturn
from unittest import mock

from temporalio.client import Client, WorkflowHandle

from hatchway.backends.event import EventBackend
from hatchway.client import connect
from hatchway.metrics import Metrics
from tests.support.customer import FixedConfig, silent, spec_of

POINTS = ("started, reply lost", "ended, reply lost")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


def broken_at(point: str) -> Any:
    start, result = Client.start_workflow, WorkflowHandle.result

    async def start_and_die(self: Client, *args: Any, **kwargs: Any) -> None:
        await start(self, *args, **kwargs)
        die()

    async def wait_and_die(self: WorkflowHandle[Any, Any], *args: Any, **kwargs: Any) -> None:
        await result(self, *args, **kwargs)
        die()

    if point == "started, reply lost":
        return mock.patch.object(Client, "start_workflow", start_and_die)
    return mock.patch.object(WorkflowHandle, "result", wait_and_die)


async def main(orders: dict[str, Any]) -> None:
    own = await connect(target_host=orders["address"], namespace=orders["namespace"])
    config = FixedConfig.of(orders["document"])
    backend = EventBackend("customers", own, config, Metrics.of(own))
    with broken_at(orders["point"]):
        await backend.spawn(spec_of(config.scaler, orders["agent_id"], claim=orders["claim"]), silent)


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
