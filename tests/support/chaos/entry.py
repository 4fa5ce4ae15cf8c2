"""A worker of the fleet: the real one, with the cloud for an engine, barriers at P1 to P9 and, if asked, a bug.

    python -m tests.support.chaos.entry [OPTIONS OF `hatchway worker`]

Environment: CHAOS_NAME (of this process), CHAOS_BARRIERS (their directory), CHAOS_CLOUD (URL), CHAOS_JOURNAL (file),
CHAOS_BUG (one of `bugs.BUGS`, or empty).
Everything is wrapped from outside: the product knows nothing of it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio import activity

import worker
from activities.auth import AuthActivities
from hatchway.backends.bare_metal import BareMetalBackend
from hatchway.backends.container import ContainerBackend
from hatchway.registry.auth import check_container_auth
from hatchway.store.adoption import Adopted, Adoption
from hatchway.store.claims import Claims
from hatchway.store.reservations import Held
from hatchway.store.slots import Slots
from tests.support.chaos.bugs import BUGS
from tests.support.chaos.cloud_backend import CloudBackend
from tests.support.chaos.journal import Journal
from tests.support.chaos.points import Barriers, Point

Call = Callable[..., Awaitable[Any]]
Wrapper = Callable[[Call], Call]

JOB_WORKFLOW = "provision/job/"
INSTANCE_BEAT_EVERY = 1.0
"""Seconds. The windows of the fleet's reaper are as much shorter."""


def wrap(owner: type, name: str, wrapper: Wrapper) -> None:
    """Replace an async method by one that the wrapper makes of it."""
    setattr(owner, name, wrapper(getattr(owner, name)))


class Standing:
    """Puts the barriers into the product's classes."""

    def __init__(self, barriers: Barriers, name: str, journal: Journal) -> None:
        self._barriers, self._name, self._journal = barriers, name, journal

    def install(self) -> None:
        wrap(Slots, "reserve", self._reserve)
        auth = sys.modules[AuthActivities.__module__]
        vars(auth)["check_container_auth"] = self._resolve(check_container_auth)
        wrap(Claims, "mint", self._after(Point.P3, lambda _self, **claim: claim["agent_id"]))
        for backend in (CloudBackend, BareMetalBackend, ContainerBackend):
            wrap(backend, "spawn", self._after(Point.P4, lambda _self, spec, _progress: spec.agent_id))
            wrap(backend, "destroy", self._destroy)
        wrap(Slots, "confirm_spawned", self._after(Point.P5, lambda _self, agent_id, *_: agent_id))
        wrap(Adoption, "adopt", self._adopt)
        wrap(Slots, "release", self._after(Point.P9, lambda _self, agent_id, *_, **__: agent_id))

    async def _stand(self, point: Point, agent_id: str, detail: str = "") -> None:
        await self._barriers.at(point, agent_id, self._name, detail)

    def _after(self, point: Point, agent_of: Callable[..., str]) -> Wrapper:
        def wrapper(call: Call) -> Call:
            async def stands(*args: Any, **kwargs: Any) -> Any:
                answer = await call(*args, **kwargs)
                await self._stand(point, agent_of(*args, **kwargs))
                return answer

            return stands

        return wrapper

    def _reserve(self, call: Call) -> Call:
        async def stands(slots: Slots, wanted: Any) -> Any:
            answer = await call(slots, wanted)
            if isinstance(answer, Held) and wanted.job_id:
                self._barriers.learn(wanted.agent_id, wanted.job_id)
                await self._stand(Point.P1, wanted.agent_id)
            return answer

        return stands

    def _resolve(self, call: Call) -> Call:
        async def stands(*args: Any) -> Any:
            answer = await call(*args)
            agent_id = self._barriers.agent_of((activity.info().workflow_id or "").removeprefix(JOB_WORKFLOW))
            await self._stand(Point.P2, agent_id)
            return answer

        return stands

    def _adopt(self, call: Call) -> Call:
        async def stands(adoption: Adoption, agent_id: str, instance_id: str, *rest: Any, **more: Any) -> Any:
            answer = await call(adoption, agent_id, instance_id, *rest, **more)
            if isinstance(answer, Adopted):
                await self._stand(Point.P6, agent_id, instance_id)
            return answer

        return stands

    def _destroy(self, call: Call) -> Call:
        async def stands(backend: Any, agent_id: str, *rest: Any) -> Any:
            await self._stand(Point.P7, agent_id)
            answer = await call(backend, agent_id, *rest)
            if isinstance(backend, BareMetalBackend):
                self._journal.append("removed", agent_id, "metal")
            await self._stand(Point.P8, agent_id)
            return answer

        return stands


def reach_the_cloud(url: str) -> None:
    """A container scaler whose `host` is the cloud's gets it; any other one gets a real engine."""
    real = ContainerBackend.connect

    async def connect(host: str | None, installation_id: str, *rest: Any, **more: Any) -> Any:
        if host == CLOUD_HOST:
            return CloudBackend(url, installation_id)
        return await real(host, installation_id, *rest, **more)

    setattr(ContainerBackend, "connect", staticmethod(connect))  # noqa: B010 - a method may not be assigned to


CLOUD_HOST = "tcp://cloud.invalid:1"
"""What the fleet's configuration calls the cloud. Each worker has a way of its own to it."""


def main() -> None:
    from hatchway.cli import main as cli

    env = os.environ
    journal = Journal(Path(env["CHAOS_JOURNAL"]))
    worker.INSTANCE_BEAT_EVERY = INSTANCE_BEAT_EVERY
    reach_the_cloud(env["CHAOS_CLOUD"])
    if bug := env.get("CHAOS_BUG"):
        BUGS[bug].install()
    Standing(Barriers(Path(env["CHAOS_BARRIERS"])), env["CHAOS_NAME"], journal).install()
    sys.argv.insert(1, "worker")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # two looks a second at the cloud
    cli()


if __name__ == "__main__":
    main()
