"""One process of the admission tests: `python -m tests.integration.store.hammer DSN NAME COUNT SCALER... [--churn]`.

Says `ready`, waits for a line on stdin so that all processes start at once, reserves COUNT slots four at a time, and
says how many it holds. With --churn it releases each again, for ever.
"""

from __future__ import annotations

import asyncio
import sys

from hatchway.errors import StoreContended
from hatchway.store.pool import Database
from hatchway.store.slots import AtCapacity, Held, Slots
from tests.integration.store.factory import candidate, reservation


async def reserve(slots: Slots, agent_id: str, scaler: str) -> bool:
    while True:
        try:
            answer = await slots.reserve(reservation(agent_id, candidates=[candidate(scaler)], wait=False))
        except StoreContended:
            continue
        assert isinstance(answer, Held | AtCapacity), answer
        return isinstance(answer, Held)


async def churn(slots: Slots, name: str, scalers: list[str]) -> None:
    number = 0
    while True:
        number += 1
        agent_id = f"{name}-{number}"
        if await reserve(slots, agent_id, scalers[number % len(scalers)]):
            await slots.release(agent_id, "released")


async def main(dsn: str, name: str, count: int, scalers: list[str]) -> None:
    async with Database.open(dsn, min_size=4, max_size=4) as db:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        slots = Slots(db)
        if "--churn" in scalers:
            await churn(slots, name, [s for s in scalers if s != "--churn"])
        got = 0
        for first in range(0, count, 4):
            numbers = range(first, min(first + 4, count))
            got += sum(
                await asyncio.gather(
                    *(reserve(slots, f"{name}-{n}", scalers[n % len(scalers)]) for n in numbers),
                )
            )
        print(got, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
