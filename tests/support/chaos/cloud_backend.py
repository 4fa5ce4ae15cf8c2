"""The fake cloud as a backend of the worker: what a driver of a real one would be."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

import hatchway.agent
from hatchway.backends.base import Accepted, Gone, OwnedCompute, Progress, SpawnSpec
from hatchway.errors import DestroyError, SpawnCode, TransientSpawnError
from hatchway.model import ComputeExit, ComputeRef, ScaleDownReason, TeardownFacts
from hatchway.through_cancel import to_its_end

KIND = "container"
"""The scaler's type under which the worker reaches it."""
HOST = "cloud"
LOOK_EVERY = 0.5
CALL_S = 4.0
"""Longer than a slow call takes."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CloudBackend:
    """`url` is the cloud's door, or a proxy in front of it."""

    def __init__(self, url: str, installation_id: str) -> None:
        self._installation = installation_id
        # A connection a call: one that a fault broke must not spoil the next.
        self._http = httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=CALL_S, limits=httpx.Limits(max_keepalive_connections=0)
        )

    @property
    def host_id(self) -> str:
        return HOST

    async def spawn(self, spec: SpawnSpec, progress: Progress) -> ComputeRef:
        progress("creating the machine")
        try:
            await to_its_end(
                self._call(
                    "create",
                    agent_id=spec.agent_id,
                    installation=spec.installation_id,
                    scaler=spec.scaler.name,
                    env={"PATH": PATH, **spec.env},
                    command=[sys.executable, "-I", str(Path(hatchway.agent.__file__))],
                )
            )
        except httpx.HTTPError as e:
            raise TransientSpawnError(SpawnCode.DAEMON_UNAVAILABLE, f"the cloud failed: {type(e).__name__}") from None
        return self.ref(spec.agent_id)

    async def destroy(self, agent_id: str, facts: TeardownFacts, reason: ScaleDownReason) -> Gone | Accepted:
        await self.remove(agent_id)
        return Gone()

    async def remove(self, agent_id: str) -> bool:
        """False: it was not there. Raises DestroyError when nobody can say."""
        try:
            answer = await self._call("destroy", agent_id=agent_id)
        except httpx.HTTPError as e:
            raise DestroyError(f"the cloud failed: {type(e).__name__}") from None
        return bool(answer["found"])

    async def find(self, agent_id: str) -> ComputeRef | None:
        return self.ref(agent_id) if (await self._call("find", agent_id=agent_id))["found"] else None

    async def exits(self) -> AsyncIterator[ComputeExit]:
        told: set[str] = set()
        while True:
            for agent_id in (await self._call("ended"))["agents"]:
                if agent_id not in told:
                    told.add(agent_id)
                    yield ComputeExit(agent_id=agent_id, exit_code=None)
            await asyncio.sleep(LOOK_EVERY)

    async def everything(self) -> list[str]:
        """The agent ids of all machines of the account, whoever made them."""
        return [machine["agent_id"] for machine in (await self._call("list"))["machines"]]

    async def owned(self) -> AsyncIterator[OwnedCompute]:
        for machine in (await self._call("list"))["machines"]:
            if machine["installation"] == self._installation:
                yield OwnedCompute(machine["agent_id"], self.ref(machine["agent_id"]))

    async def logs(self, agent_id: str, lines: int = 200) -> str:
        return ""

    async def close(self) -> None:
        await self._http.aclose()

    def ref(self, agent_id: str) -> ComputeRef:
        return ComputeRef(backend=KIND, ref=agent_id, host_id=HOST)

    async def _call(self, verb: str, **ask: Any) -> Any:
        answer = await self._http.post(f"/{verb}", json=ask)
        answer.raise_for_status()
        return answer.json()
