"""Looks at instances: many agents' in one call, however many ask at once.

EC2 counts calls, not instances, and shows a new instance, or its tags, up to seconds late. So nobody looks alone: what
is asked for within a moment goes into one DescribeInstances, and that one goes out at most once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hatchway.backends.ec2_client import Ec2Client
from hatchway.backends.ec2_request import AGENT_ID, INSTALLATION, SCALER

TERMINATED = "terminated"
GOING = frozenset({"shutting-down", TERMINATED})
ENDED = frozenset({*GOING, "stopping", "stopped"})
"""States in which no agent runs. Nothing of ours is ever started again."""

VALUES = 200 - 1
"""Values that EC2 takes in one call, of all of its filters together: one of them is the installation."""
PAGE = 1000
"""Instances on one page, at most."""
TOGETHER_S = 0.05
"""How long the first who asks waits for others."""
LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Instance:
    id: str
    agent_id: str
    state: str
    launched_at: datetime | None
    reason: str
    """EC2's code of why it is in its state: `Client.InstanceInitiatedShutdown`, `Server.SpotInstanceTermination`."""

    @property
    def runs(self) -> bool:
        return self.state not in ENDED

    @property
    def is_there(self) -> bool:
        return self.state != TERMINATED


def instance_of(described: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    return Instance(
        id=str(described["InstanceId"]),
        agent_id=tags.get(AGENT_ID, ""),
        state=str(described["State"]["Name"]),
        launched_at=described.get("LaunchTime"),
        reason=str(described.get("StateReason", {}).get("Code", "")),
    )


def chosen(found: list[Instance]) -> str:
    """Of several the one that runs, and of those the first: whoever looks must come upon the same."""
    running = [one for one in found if one.runs]
    return (running or found)[0].id


class Instances:
    """What one region has of one installation."""

    def __init__(
        self, client: Ec2Client, installation_id: str, *, together: float = TOGETHER_S, look_every: float = LOOK_EVERY_S
    ) -> None:
        """Seconds, both: see the constants."""
        self._client = client
        self._installation_id = installation_id
        self._together = together
        self._look_every = look_every
        self._asked: dict[str, asyncio.Future[list[Instance]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -look_every

    async def of(self, agent_id: str) -> list[Instance]:
        """All instances of an agent that EC2 shows, whatever their state; the newest last.

        As of a moment after the call. Raises Ec2Unreachable, Ec2Refused.
        """
        future = self._asked.get(agent_id)
        if future is None:
            future = self._asked[agent_id] = asyncio.get_running_loop().create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(future)  # whoever else asks for it must not lose it with this one

    async def _look(self) -> None:
        while self._asked:
            await asyncio.sleep(max(self._together, self._looked_at + self._look_every - time.monotonic()))
            asked, self._asked = dict(list(self._asked.items())[:VALUES]), dict(list(self._asked.items())[VALUES:])
            self._looked_at = time.monotonic()
            try:
                found = [one async for one in self._pages([_tag(AGENT_ID, asked)])]
            except Exception as e:  # each of those who asked hears of it, and none is left waiting
                for future in asked.values():
                    if not future.done():
                        future.set_exception(e)
                        future.exception()  # whoever asked may have been cancelled: then nobody looks at it
                continue
            for agent_id, future in asked.items():
                if not future.done():
                    future.set_result([one for one in found if one.agent_id == agent_id])

    def of_scaler(self, scaler: str) -> AsyncIterator[Instance]:
        """Every instance of a scaler, whatever its state. Raises Ec2Unreachable, Ec2Refused."""
        return self._pages([_tag(SCALER, [scaler])])

    async def by_id(self, ids: Iterable[str]) -> list[Instance]:
        """Those of these ids that EC2 shows, whatever they bear and whatever their state."""
        found, left = [], sorted(ids)
        while left:
            now, left = left[:VALUES], left[VALUES:]
            found += [one async for one in self._pages([{"Name": "instance-id", "Values": now}], bears_ours=False)]
        return found

    async def of_token(self, client_token: str) -> list[Instance]:
        """What EC2 shows of what was launched with that token, whatever it bears."""
        launched = [{"Name": "client-token", "Values": [client_token]}]
        return [one async for one in self._pages(launched, bears_ours=False)]

    async def probe(self) -> None:
        """Return when EC2 lets this worker look. Raises Ec2Unreachable, Ec2Refused."""
        await self._client.call("describe_instances", Filters=[_tag(INSTALLATION, [self._installation_id])],
                                MaxResults=5)  # fmt: skip

    async def _pages(self, filters: list[dict[str, Any]], *, bears_ours: bool = True) -> AsyncIterator[Instance]:
        ours = [_tag(INSTALLATION, [self._installation_id])] if bears_ours else []
        ask: dict[str, Any] = {"Filters": [*ours, *filters], "MaxResults": PAGE}
        while True:
            answer = await self._client.call("describe_instances", **ask)
            page = [instance_of(one) for reservation in answer["Reservations"] for one in reservation["Instances"]]
            for instance in sorted(page, key=lambda one: (str(one.launched_at), one.id)):
                yield instance
            if not answer.get("NextToken"):
                return
            ask["NextToken"] = answer["NextToken"]


def _tag(key: str, values: Iterable[str]) -> dict[str, Any]:
    return {"Name": f"tag:{key}", "Values": list(values)}
