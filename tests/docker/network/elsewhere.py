"""One isolated spawn from another process: one that lacks something, or one that stops dead at a named point.

A test runs it inside another namespace or without rights; or waits for `reached` and kills it there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

import docker

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_firewall import Firewall
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.errors import SpawnError
from tests.docker.backends.crash import reach
from tests.docker.backends.rig import HOST_ID, quiet

POINTS = {
    "network not made": (docker.APIClient, "create_network", False),
    "network made, reply lost": (docker.APIClient, "create_network", True),
    "rules not loaded": (Firewall, "ensure", False),
    "rules loaded": (Firewall, "ensure", True),
    "container created, reply lost": (docker.APIClient, "create_container", True),
    "not started": (docker.APIClient, "start", False),
    "started, reply lost": (docker.APIClient, "start", True),
}


def stop_at(point: str) -> None:
    """Let this process come to that point, and no further."""
    owner, name, afterwards = POINTS[point]
    call = getattr(owner, name)

    def stopped(*args: Any, **kwargs: Any) -> None:
        if afterwards:
            call(*args, **kwargs)
        reach()

    setattr(owner, name, stopped)


async def main() -> None:
    order = json.load(sys.stdin)
    if "point" in order:
        stop_at(order["point"])
    label_set = LabelSet(labels=["linux"], image=order["image"])
    spec = SpawnSpec(
        agent_id=order["agent_id"],
        scaler=Scaler(name="docker", type=ScalerType.CONTAINER, max_agents=1, label_sets=[label_set]),
        label_set=label_set,
        labels=("linux",),
        installation_id=order["installation"],
        env={"KICI_ORCHESTRATOR_URL": order["url"]},
        image=order["image"],
        stop_grace=timedelta(0),
    )
    backend = ContainerBackend(HOST_ID, None, order["installation"])
    try:
        await backend.spawn(spec, quiet)
    except SpawnError as e:
        print(json.dumps({"type": type(e).__name__, "error": str(e)}))
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
