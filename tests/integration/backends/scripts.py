"""Agents of this host that are shell scripts, and what they print."""

from __future__ import annotations

import asyncio

from hatchway.backends.base import SpawnSpec
from tests.contract.backend import (
    environment_for,
    exit_of,
    fresh_agent_id,
    silent,
)
from tests.contract.bare_metal import BareMetalHarness, bare_metal_spec


def shell(agent_id: str, script: str, *, grace: float = 1.0, working_directory: str | None = None) -> SpawnSpec:
    return bare_metal_spec(
        agent_id, ["sh", "-c", script], environment_for(agent_id), grace=grace, working_directory=working_directory
    )


async def run(harness: BareMetalHarness, script: str) -> str:
    """Run a script as an agent, and answer what it printed."""
    agent_id = fresh_agent_id()
    await harness.backend.spawn(shell(agent_id, script), silent)
    await exit_of(harness.backend, agent_id)
    return await harness.backend.logs(agent_id)


async def printed(harness: BareMetalHarness, agent_id: str, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in await harness.backend.logs(agent_id):
            await asyncio.sleep(0.02)
