"""`hatchway demo --docker`: the same provision as a container, from a registry that wants the job's own password.

Then once more with a wrong password, while the image lies in the engine: an image that was pulled with credentials
serves no job without them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hatchway.backends.container import ContainerBackend
from hatchway.backends.container_engine import Engine
from hatchway.backends.container_errors import EngineRefused
from hatchway.dev.demo import JOB, TOKEN, Result, Say, request, secret_contexts, write_private
from hatchway.dev.images import agent_image
from hatchway.dev.registry import EmbeddedRegistry
from hatchway.dev.showing import Showing, Shown
from hatchway.dev.stack import Stack, connected
from hatchway.errors import HatchwayError, SpawnCode
from hatchway.store.installation import installation_id

NAME = "demo/agent:1"


@asynccontextmanager
async def demo(directory: Path, say: Say, *, database_url: str | None = None) -> AsyncIterator[Result]:
    """Run the demo; its servers stay up inside the context. Raises HatchwayError, also for what is missing here."""
    engine = Engine(None)
    try:
        await engine.facts()
        stack = Stack(
            directory,
            directory / "config.yaml",
            gateway_host=await _bridge_address(engine),
            database_url=database_url,
            say=say,
        )
        stack.prepare()
        registry = EmbeddedRegistry(stack.directory / "registry")
        image = await asyncio.to_thread(_publish, registry, say)
        try:
            write_private(stack.secrets_dir / TOKEN, registry.login.password)
            write_private(stack.config, json.dumps(_config(stack, registry), indent=2))
            async with connected(stack) as (client, db):
                backend = await ContainerBackend.connect(None, await installation_id(db))
                try:
                    showing = Showing(stack, client, db, backend, say)
                    shown = await showing.run(request(image, registry.login.username))
                    ok = await shown.check(client, db, say)
                    ok = await _wrong_password(showing, stack, engine, image, registry.login.username, say) and ok
                finally:
                    await backend.close()
                yield Result.of(shown, ok=ok)
        finally:
            await _remove(engine, image)
            await asyncio.to_thread(registry.stop)
    finally:
        await engine.close()


def _publish(registry: EmbeddedRegistry, say: Say) -> str:
    """Start the registry and put the agent's image there, and nowhere else; its reference."""
    registry.start()
    try:
        image = registry.put(NAME, agent_image())
    except BaseException:
        registry.stop()
        raise
    say(f"a registry that wants a password is up at {registry.host}, and has {NAME}")
    return image


async def _wrong_password(showing: Showing, stack: Stack, engine: Engine, image: str, username: str, say: Say) -> bool:
    """Whether a job with a wrong password gets no agent, although the engine has the image."""
    cached = await _has(engine, image)
    say(f"now with a wrong password; the image is {'in the engine already' if cached else 'not in the engine'}")
    write_private(stack.secrets_dir / TOKEN, secrets.token_urlsafe(24))
    shown = await showing.run(request(image, username))
    say(f"           refused: {shown.failure}" if shown.failure else "           it was not refused")
    return cached and _denied(shown)


def _denied(shown: Shown) -> bool:
    return shown.failure is not None and SpawnCode.AUTH_DENIED.value in str(shown.failure)


async def _bridge_address(engine: Engine) -> str:
    """This machine's address on the engine's default bridge: where a container finds a gateway that runs here."""
    network: dict[str, Any] = await engine.call("describe its bridge", lambda client: client.inspect_network("bridge"))
    for entry in network["IPAM"]["Config"]:
        if entry.get("Gateway"):
            return str(entry["Gateway"])
        # An engine that was never told an address takes the first one, and does not always say so.
        if entry.get("Subnet"):
            return str(next(ipaddress.ip_network(entry["Subnet"]).hosts()))
    raise HatchwayError("the engine's default network has no address of this machine: is the engine on another one?")


async def _has(engine: Engine, image: str) -> bool:
    try:
        await engine.call("look for the image", lambda client: client.inspect_image(image))
    except EngineRefused:
        return False
    return True


async def _remove(engine: Engine, image: str) -> None:
    """Leave the engine as it was."""
    if await _has(engine, image):
        await engine.call("remove the demo's image", lambda client: client.remove_image(image, force=True))


def _config(stack: Stack, registry: EmbeddedRegistry) -> dict[str, Any]:
    label_set = {"labels": ["linux"], "env": {"HATCHWAY_AGENT_COMMAND": json.dumps(JOB)}}
    return {
        "version": 1,
        "secrets": secret_contexts(stack, registry.host),
        "scalers": [
            {
                "name": "demo",
                "type": "container",
                "maxAgents": 1,
                "networkIsolation": False,
                "allowJobImage": True,
                "labelSets": [label_set],
            }
        ],
    }
