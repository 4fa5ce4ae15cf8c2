"""A storm whose every fault is a link that loses its packets, in a network namespace of its own.

    ip netns exec NAMESPACE python -m tests.support.chaos.losing SEED MINUTES

The last line of its output is one JSON object: `figures` (text), `provisions`, `lost_packets`, `violations`.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.support.chaos.firewall import Firewall
from tests.support.chaos.fleet import running_fleet
from tests.support.chaos.storm import Storm


async def lose(seed: int, minutes: float) -> dict[str, object]:
    firewall = Firewall()
    async with running_fleet() as fleet:
        storm = Storm(fleet, seed, firewall)
        figures = await storm.run(minutes)
    return {
        "figures": str(figures), "provisions": figures.provisions, "lost_packets": firewall.lost(),
        "faults": figures.faults.total(), "violations": [str(violation) for violation in storm.violations],
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(asyncio.run(lose(int(sys.argv[1]), float(sys.argv[2])))))
