"""Hosts and scalers that the configuration in force does not lead to any more, and that agents still need.

A scaler may have left the configuration, or lead to another engine, while its agents live; and then every worker that
served them may have been replaced. Their hosts must be served all the same: a teardown goes to the host's queue, and an
exit is seen there and nowhere else. What leads there is the configuration that the agents' rows were reserved under.
So with an agent that is still to be made: its spawn waits in the queue of a scaler that nobody may poll any more.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import structlog

from hatchway.config.current import CurrentConfig
from hatchway.config.schema import Scaler
from hatchway.errors import ConfigError
from hatchway.store.former import Former, FormerPlace
from hatchway.trouble import Trouble

log = structlog.get_logger("hatchway.worker")

LOOK_EVERY = 30.0
"""Seconds between two looks at one version, each of which reads every row once: for agents that were reserved while
somebody had not heard of it yet. A worker that starts looks at once, as does one that hears of a new version."""


@dataclass(frozen=True, slots=True)
class FormerScaler:
    """A scaler as another version of the configuration has it."""

    scaler: Scaler
    hosts: frozenset[str]
    """That agents of it stand on."""
    spawning: bool
    """Agents of it are still to be made, or made again."""


class FormerScalers:
    """Scalers as the rows of their agents know them."""

    def __init__(self, former: Former, config: CurrentConfig) -> None:
        self._former = former
        self._config = config
        self._looked: tuple[int, float] | None = None
        self._known: list[FormerScaler] = []
        self._unreadable: set[int] = set()
        self._trouble = Trouble(log, "hosts of former scalers cannot be read; going on with what is known")

    async def as_of(self, version: int) -> list[FormerScaler]:
        """Those that agents still need; of this version, which is in force, none.

        As of a few seconds ago. What was known stays while the database does not answer, or answers with an error.
        """
        now = time.monotonic()
        if self._looked is None or self._looked[0] != version or now - self._looked[1] >= LOOK_EVERY:
            try:
                self._known = await self._read(await self._former.places(version))
            except Exception as e:  # whatever it is, the scalers in force are served
                self._trouble.met(e)
            else:
                self._trouble.over()
            self._looked = version, now
        return self._known

    async def _read(self, places: list[FormerPlace]) -> list[FormerScaler]:
        together: dict[tuple[str, int], list[FormerPlace]] = defaultdict(list)
        for place in places:
            together[place.scaler, place.config_version].append(place)
        found = []
        for (name, version), of_it in together.items():
            scaler = await self._scaler(name, version)
            if scaler is not None:
                hosts = frozenset(place.host_id for place in of_it if place.host_id is not None)
                found.append(FormerScaler(scaler, hosts, any(place.spawning for place in of_it)))
        return found

    async def _scaler(self, name: str, version: int) -> Scaler | None:
        try:
            scaler = (await self._config.version(version)).scaler(name)
        except ConfigError as e:  # of a newer release: that one's workers serve it
            if version not in self._unreadable:
                log.warning("agents of a former configuration are left to other workers", error=str(e))
            self._unreadable.add(version)
            return None
        return scaler
