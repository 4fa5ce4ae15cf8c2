"""Agents as EC2 instances, found again by their tags: any worker with AWS credentials can take over from any other.

What an agent's instance is asked for with is a token made of the agent's id and the offer, so EC2 itself refuses the
second one of a spawn that ran twice. EC2 shows a new instance late: that nothing is seen means nothing for a while.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import structlog

from hatchway.backends.base import Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.backends.ec2_client import Ec2Client, Ec2Clients, Place
from hatchway.backends.ec2_errors import (
    Ec2Error,
    Ec2Refused,
    Ec2TagsLost,
    Ec2Unreachable,
    ec2_error,
    unreachable_error,
)
from hatchway.backends.ec2_exits import POLL_S, Ec2Exits, console
from hatchway.backends.ec2_instances import GOING, LOOK_EVERY_S, Instance, Instances, chosen
from hatchway.backends.ec2_offers import Walk
from hatchway.backends.ec2_request import (
    AGENT_ID,
    INSTALLATION,
    Image,
    check_image,
    refuse_what_cannot_run,
    script,
    secrets_of_worker,
)
from hatchway.backends.ec2_user_data import printed
from hatchway.backends.errors import plain
from hatchway.config.ec2_schema import Ec2LabelSet
from hatchway.config.schema import Scaler, ScalerType
from hatchway.errors import DestroyError, HatchwayError, PermanentSpawnError, SpawnCode
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts

log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Pace:
    """How patient a backend is. Seconds."""

    visible_after: float = 30.0
    """How late EC2 shows an instance, or its tags, at most: it says "eventually", and means a second or two. What shows
    later than this has no row any more, and is reclaimed."""
    poll: float = POLL_S
    look_every: float = LOOK_EVERY_S
    longest_pause: float = 5.0
    """Between two looks at instances that are going."""


PACE = Pace()


@dataclass
class _Region:
    client: Ec2Client
    instances: Instances


class Ec2Backend:
    """One scaler's instances. `host_id` is `scaler.<name>`: no machine of ours has a part in them."""

    def __init__(self, scaler: Scaler, installation_id: str, pace: Pace | None = None) -> None:
        if scaler.ec2 is None:
            raise HatchwayError(f"scaler {scaler.name} has no section `ec2`: say its region there")
        self._scaler = scaler.name
        self._home = Place.of(scaler.ec2)
        self._installation_id = installation_id
        self._pace = pace or PACE
        self._clients = Ec2Clients()
        self._regions: dict[Place, _Region] = {}
        self._images: dict[tuple[Place, str], Image] = {}
        self._ended_by_us: dict[str, None] = {}

    @classmethod
    async def connect(cls, scaler: Scaler, installation_id: str, pace: Pace | None = None) -> Self:
        """A backend that EC2 has answered. Raises HatchwayError where it does not, or not to this worker."""
        backend = cls(scaler, installation_id, pace)
        try:
            await backend._at(backend._home).instances.probe()
        except Ec2Error:
            await backend.close()
            raise
        return backend

    @property
    def host_id(self) -> str:
        return host_id(self._scaler)

    async def engine_id(self) -> str:
        """The place that a spawn here asks: what a teardown goes to, whatever the scaler's name leads to by then."""
        return str(self._home)

    # ── spawn ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        """Take the first offer that there is; or find what an earlier attempt made, in whatever state it is.

        A cancel waits for a launch that is under way, and for nothing else: no further offer is asked for.

        An instance that an earlier attempt made keeps that attempt's environment, claim included.
        """
        place = self._place_of(spec.scaler)
        try:
            ec2 = refuse_what_cannot_run(spec, self._installation_id, secrets_of_worker(os.environ))
            return await self._make(place, spec, ec2, progress)
        except Ec2Refused as e:
            raise ec2_error(e.without(spec.secret_values)) from None
        except Ec2Unreachable as e:
            raise unreachable_error(e) from None

    def _place_of(self, scaler: Scaler) -> Place:
        place = Place.of(scaler.ec2) if scaler.ec2 is not None else self._home
        if place != self._home:  # what stands on the row, and is looked for, is this worker's
            raise PermanentSpawnError(
                SpawnCode.INVALID_SPEC,
                f"scaler {scaler.name} was moved from {self._home} to {place}: an agent that is being made would be "
                "looked for in the wrong place; give the scaler of the new place a new name, or restart the worker "
                f"that has reached {self._home}",
            )
        return place

    async def _make(self, place: Place, spec: SpawnSpec, ec2: Ec2LabelSet, progress: Progress) -> ComputeRef:
        region = self._at(place)
        image, text = await self._image(place, ec2.ami), script(spec, ec2, place.region)
        check_image(image, spec)
        half = self._pace.visible_after if spec.time_limit is None else spec.time_limit.total_seconds() / 2
        looks = partial(self._looks, region, spec.agent_id, min(self._pace.visible_after, half))
        walk = Walk(region.client, region.instances, looks, spec, ec2, progress)
        return self._ref(place, await walk.take(image, text))

    async def _image(self, place: Place, ami: str) -> Image:
        """Asked for once: an AMI never changes. One that is deregistered later is refused by the launch itself."""
        if (place, ami) not in self._images:
            answer = await self._at(place).client.call("describe_images", ImageIds=[ami])
            if not answer["Images"]:
                raise Ec2Refused("describe_images", "InvalidAMIID.NotFound", f"no AMI {ami} in {place.region}")
            self._images[place, ami] = _image_of(answer["Images"][0])
        return self._images[place, ami]

    # ── teardown ────────────────────────────────────────────────────────────────────────────────────────────────

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone:
        """Terminate every instance of the agent, and return when EC2 shows all of them terminated.

        Nothing to be seen is gone only after `visible_after`: a stamp says that a launch may have been asked for.
        """
        known, where = None, facts.engine
        if facts.compute is not None and facts.compute.backend == ScalerType.EC2:
            known, where = facts.compute.ref, facts.compute.endpoint or where
        place = Place.parse(where) if where else self._home
        try:
            await self._end(self._at(place), agent_id, known)
        except Ec2Error as e:
            raise DestroyError(f"the instance of {agent_id} is not confirmed gone: {e}") from None
        return Gone()

    async def _end(self, region: _Region, agent_id: str, known: str | None) -> None:
        """Terminate what EC2 shows and nothing else: it answers 403 for what it has forgotten, where the worker may
        end only what bears its tags, and so a refusal says nothing about what is there."""
        asked: set[str] = set()
        seen = {known} if known is not None else set()
        async for found in self._looks(region, agent_id, self._pace.visible_after):
            shown = {one.id for one in found}
            seen |= shown
            for instance_id in sorted({one.id for one in found if one.state not in GOING} - asked):
                if await self._terminate(region, instance_id):
                    asked.add(instance_id)
            if found and seen == shown and not any(one.is_there for one in found):
                return
        # Tags can be removed by whoever may; an id cannot.
        for one in await region.instances.by_id(seen):
            if one.is_there:
                raise Ec2TagsLost(
                    f"EC2 shows {one.id} {one.state} without its tags: put back {AGENT_ID}={agent_id} and "
                    f"{INSTALLATION}={self._installation_id}, or terminate it yourself"
                )

    async def _looks(self, region: _Region, agent_id: str, patience: float) -> AsyncIterator[list[Instance]]:
        """Look ever less often, for as long as there is something, or, for so many seconds, while there may come to
        be."""
        since, pause = time.monotonic(), self._pace.look_every / 2
        while True:
            found = await region.instances.of(agent_id)
            yield found
            if not any(one.is_there for one in found) and time.monotonic() - since >= patience:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.6, self._pace.longest_pause)

    async def _terminate(self, region: _Region, instance_id: str) -> bool:
        """False: EC2 does not know it; not yet, or not any more."""
        self._ended_by_us[instance_id] = None
        while len(self._ended_by_us) > REMEMBERED:
            self._ended_by_us.pop(next(iter(self._ended_by_us)))
        try:
            await region.client.call("terminate_instances", InstanceIds=[instance_id])
        except Ec2Refused as e:
            if e.not_found:
                return False
            raise
        return True

    # ── looks ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, agent_id: str) -> ComputeRef | None:
        """The agent's instance that is not terminated. Raises HatchwayError while EC2 does not answer."""
        found = [one for one in await self._at(self._home).instances.of(agent_id) if one.is_there]
        return self._ref(self._home, chosen(found)) if found else None

    async def exits(self) -> AsyncIterator[ComputeExit]:
        """Agents whose instances have ended, by themselves or by others' doing. What EC2 has forgotten is not told."""
        region = self._at(self._home)
        exits = Ec2Exits(region.client, region.instances, self._scaler, self._ended_by_us, self._pace.poll)
        async with aclosing(exits.watch()) as watch:
            async for ended in watch:
                yield ended

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        """Every instance of this scaler that is not terminated: what is costs nothing, and cannot be removed."""
        async for one in self._at(self._home).instances.of_scaler(self._scaler):
            if one.is_there:
                yield OwnedCompute(one.agent_id, self._ref(self._home, one.id), one.launched_at)

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        """The end of the instance's console: what its agent printed, or how far it has come in booting."""
        region = self._at(self._home)
        found = await region.instances.of(agent_id)
        if not found:
            return ""
        text = plain(printed(await console(region.client, chosen(found))).text)
        return "\n".join(text.rstrip().split("\n")[-lines:])

    async def close(self) -> None:
        """Let the threads go. Every instance stays."""
        self._clients.close()

    def _at(self, place: Place) -> _Region:
        if place not in self._regions:
            client = self._clients.at(place)
            instances = Instances(client, self._installation_id, look_every=self._pace.look_every)
            self._regions[place] = _Region(client, instances)
        return self._regions[place]

    def _ref(self, place: Place, instance_id: str) -> ComputeRef:
        return ComputeRef(backend=ScalerType.EC2, ref=instance_id, host_id=self.host_id, endpoint=str(place))


REMEMBERED = 10_000
"""Instances that a worker knows to have ended itself: far more than EC2 shows in the hour after."""


def host_id(scaler: str) -> str:
    """What the rows of a scaler's agents are stamped with: the queue that any worker with credentials polls."""
    return f"scaler.{scaler}"


def _image_of(described: Mapping[str, Any]) -> Image:
    return Image(
        id=str(described["ImageId"]),
        root_device=str(described.get("RootDeviceName") or "/dev/xvda"),
        architecture=str(described.get("Architecture", "")),
        windows=str(described.get("Platform", "")).lower() == "windows",
        volumes=tuple(str(one["DeviceName"]) for one in described.get("BlockDeviceMappings", []) if "Ebs" in one),
    )


__all__ = ["Ec2Backend", "Pace", "host_id"]
