"""Which of the containers that bear an agent's labels are the agent's own.

    named for the agent, or without any name ──► its own
    named otherwise ── one that is named for it is there ──────────────► a copy
                    ├─ its image bears the agent's label ──────────────► a copy
                    └─ neither: the label was given when it was made ──► its own, and somebody has renamed it

The labels alone do not tell: `docker commit` copies them into an image, and whatever runs from that bears them too.
Tools that duplicate a container give the new one its labels and another name, while the first one keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hatchway.backends.container_create import AGENT_ID, is_named_for
from hatchway.backends.container_engine import Client
from hatchway.backends.container_errors import EngineRefused
from hatchway.backends.container_network import INSTALLATION

Listed = dict[str, Any]
"""A container as the engine lists it."""


def is_named(container: Listed) -> bool:
    return is_named_for(_agent_of(container), container.get("Names") or [])


def own(client: Client, listed: Sequence[Listed], spawned: str | None = None) -> list[Listed]:
    """Those that are agents' own, in the same order. `spawned`: the id of one that is known to be.

    `listed`: everything that bears the labels of the agents in question, in any state.
    """
    sure = {one["Id"]: _agent_of(one) for one in listed if one["Id"] == spawned or is_named(one)}
    with_one = frozenset(sure.values())

    def is_own(one: Listed) -> bool:
        agent_id = _agent_of(one)
        if not agent_id or one["Id"] in sure:
            return bool(agent_id)
        return agent_id not in with_one and not _inherits(client, str(one["ImageID"]), agent_id)

    return [one for one in listed if is_own(one)]


def was_renamed(client: Client, installation_id: str, attributes: Mapping[str, str]) -> bool:
    """The same of a container that an event tells of, and that is not named for its agent. It may be gone already.

    `attributes`: of the event's actor.
    """
    agent_id = attributes[AGENT_ID]
    labels = [f"{INSTALLATION}={installation_id}", f"{AGENT_ID}={agent_id}"]
    if any(is_named(one) for one in client.containers(all=True, filters={"label": labels})):
        return False
    return not _inherits(client, attributes.get("image", ""), agent_id)


def _agent_of(container: Listed) -> str:
    return str((container.get("Labels") or {}).get(AGENT_ID, ""))


def _inherits(client: Client, image: str, agent_id: str) -> bool:
    """Whether a container has the label from its image. An image that is gone leaves that in doubt: then it may."""
    try:
        found = client.inspect_image(image) if image else None
    except Exception as e:  # the SDK's own, whose types stay where it is spoken
        if not EngineRefused("look up an image", getattr(e, "status_code", None) or 0, str(e)).not_found:
            raise
        found = None
    return found is None or ((found.get("Config") or {}).get("Labels") or {}).get(AGENT_ID) == agent_id
