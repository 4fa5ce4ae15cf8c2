"""One isolated spawn from a process that lacks something; run by a test inside another namespace or without rights."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from hatchway.backends.base import SpawnSpec
from hatchway.backends.container import ContainerBackend
from hatchway.config.schema import LabelSet, Scaler, ScalerType
from hatchway.errors import SpawnError
from tests.docker.backends.rig import HOST_ID, quiet


async def main() -> None:
    order = json.load(sys.stdin)
    label_set = LabelSet(labels=["linux"], image=order["image"])
    spec = SpawnSpec(
        agent_id="scaler-elsewhere",
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
