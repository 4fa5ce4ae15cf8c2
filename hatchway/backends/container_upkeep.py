"""Looking after isolated networks: rules that somebody flushed come back, and what no agent uses any more goes.

A spawn makes sure of its own network's rules. This makes sure of those of agents that run already: a reload of the
machine's own firewall (`flush ruleset`) would otherwise leave them open until the next spawn.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from hatchway.backends.container_engine import Engine
from hatchway.backends.container_errors import EngineRefused
from hatchway.backends.container_firewall import Firewall, FirewallUnusable
from hatchway.backends.container_network import INSTALLATION, Network, Networks, has_bridge, table_prefix
from hatchway.errors import HatchwayError

log = structlog.get_logger(__name__)

EVERY = 15.0
"""Seconds between two looks: how long a flushed firewall leaves running agents open, at most."""
UNUSED_AFTER = timedelta(minutes=10)
"""Younger networks stay: the container that one was made for may be on its way."""


class Upkeep:
    """The networks and tables of one installation on one engine. Touches nobody else's."""

    def __init__(self, engine: Engine, networks: Networks, firewall: Firewall, installation_id: str) -> None:
        self._engine = engine
        self._networks = networks
        self._firewall = firewall
        self._installation_id = installation_id
        self._said: str | None = None

    async def run(self, *, isolating: bool) -> None:
        """Look again and again, until cancelled. `isolating`: agents will ask for it; say at once if it cannot be."""
        if isolating:
            try:
                await asyncio.to_thread(self._firewall.check)
            except HatchwayError as e:
                log.error("agents_cannot_be_isolated", consequence="spawns that ask for it will fail", error=str(e))
        while True:
            try:
                await self.look(unused_after=UNUSED_AFTER)
                self._said = None
            except Exception as e:  # whatever an engine answered, the networks of its agents must stay looked after
                self._say(e)
            await asyncio.sleep(EVERY)

    async def look(self, *, unused_after: timedelta) -> None:
        """One pass: put rules right, remove what is unused for sure. Raises EngineUnreachable, EngineRefused."""
        await asyncio.to_thread(self._networks.put_back)
        listed = await self._networks.listed()
        ours = self._networks.ours(listed)
        if ours:
            used = await self._used()
            for network in ours:
                try:
                    if network.name in used:
                        await self._networks.put_right(network, listed)
                    elif _age(network) >= unused_after:
                        await self._remove(network)
                except HatchwayError as e:
                    self._say(e)
        try:
            await asyncio.to_thread(self._remove_tables_without_bridge)
        except FirewallUnusable:
            if ours:
                raise
            # No rules can be made here, and none are needed: nobody asked for isolation.

    async def _used(self) -> set[str]:
        """The networks that containers of ours are bound to, also those that have not started."""
        labels = {"label": [f"{INSTALLATION}={self._installation_id}"]}
        found: list[dict[str, Any]] = await self._engine.call(
            "list its containers", lambda c: c.containers(all=True, filters=labels)
        )
        return {str((container.get("HostConfig") or {}).get("NetworkMode")) for container in found}

    async def _remove(self, network: Network) -> None:
        """The network first: from then on the engine starts nothing in it, so its rules guard nobody any more."""
        try:
            await self._engine.call("remove a network", lambda c: c.remove_network(network.name))
        except EngineRefused as e:
            if not e.not_found and "not found" not in e.text:
                log.info("isolated_network_kept", network=network.name, because=str(e))
                return
        await asyncio.to_thread(self._firewall.remove, network.table)
        log.info("isolated_network_removed", network=network.name)

    def _remove_tables_without_bridge(self) -> None:
        """Left by a worker that was killed between the two removals. No bridge of that name can come back."""
        prefix = table_prefix(self._installation_id)
        for table in self._firewall.tables(prefix):
            if not has_bridge(table):
                self._firewall.remove(table)

    def _say(self, e: Exception) -> None:
        """Once for each trouble, not once for each look."""
        if str(e) != self._said:
            log.error("isolated_networks_not_looked_after", error=str(e), kind=type(e).__name__)
        self._said = str(e)


def _age(network: Network) -> timedelta:
    """By the engine's clock against this worker's. Zero where the engine's time cannot be read: then it stays."""
    try:
        return datetime.now(UTC) - datetime.fromisoformat(network.created)
    except (ValueError, TypeError):
        return timedelta(0)
