"""`python -m bench.reap_once DSN ADDRESS NAMESPACE`: one pass of the reaper in a process of its own.

With all that a worker has loaded. Prints the most memory that it had, in MB.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from temporalio.testing import ActivityEnvironment

import worker  # noqa: F401 - what a worker has in memory belongs to the figure
from activities.reap import ReapActivities
from hatchway.client import connect
from hatchway.config.current import CurrentConfig
from hatchway.metrics import Metrics
from hatchway.model import SweepRequest
from hatchway.store.adoption import Adoption
from hatchway.store.config_versions import ConfigVersions
from hatchway.store.pool import Database
from hatchway.store.reaping import Reaping
from hatchway.store.slots import Slots
from hatchway.tie import NamespaceTie


async def main(dsn: str, address: str, namespace: str) -> None:
    temporal = await connect(target_host=address, namespace=namespace)
    async with Database.open(dsn) as db:
        config = CurrentConfig(ConfigVersions(db), os.environ)
        reap = ReapActivities(
            Reaping(db), Slots(db), Adoption(db), config, NamespaceTie(db, temporal), temporal, Metrics.of(temporal)
        )
        await ActivityEnvironment().run(reap.reap, SweepRequest())
    print(_most_memory_mb())


def _most_memory_mb() -> float:
    """Of this program: what getrusage says begins with the process that it was started from."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(status["VmHWM"].split()[0]) / 1024


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # the SDK's native threads can abort an interpreter that is being finalised
