"""What isolated networks leave on the engine and in the firewall, and how a test takes it away."""

from __future__ import annotations

import re
from typing import Any

import docker

from hatchway.backends.container_network import table_prefix
from tests.docker.network.world import run


def networks_of(client: docker.DockerClient, installation: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.api.networks(filters={"label": [f"hatchway.installation={installation}"]})
    return found


def bridge_of(network: dict[str, Any]) -> str:
    return str(network["Options"]["com.docker.network.bridge.name"])


def table_of(network: dict[str, Any]) -> str:
    prefix = table_prefix(network["Labels"]["hatchway.installation"])
    return prefix + bridge_of(network).removeprefix("hw-")


def tables() -> list[str]:
    return re.findall(r"^table inet (\S+)$", run("nft", "list", "tables", "inet"), re.MULTILINE)


def remove_networks(client: docker.DockerClient, installation: str) -> None:
    """Those of one installation, with their rules. Its containers have to be gone."""
    for network in networks_of(client, installation):
        client.api.remove_network(network["Id"])
    for table in tables():
        if table.startswith(table_prefix(installation)):
            run("nft", "delete", "table", "inet", table)
