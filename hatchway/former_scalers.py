"""Hosts that the configuration in force does not lead to any more, and that agents still stand on.

A scaler may have left the configuration, or lead to another engine, while its agents live; and then every worker that
served them may have been replaced. Their hosts must be served all the same: a teardown goes to the host's queue, and an
exit is seen there and nowhere else. What leads there is the configuration that the agents' rows were reserved under.
"""

from __future__ import annotations

import time
from collections import defaultdict

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


class FormerScalers:
    """Scalers as the rows of their agents know them."""

    def __init__(self, former: Former, config: CurrentConfig) -> None:
        self._former = former
        self._config = config
        self._looked: tuple[int, float] | None = None
        self._known: list[tuple[Scaler, frozenset[str]]] = []
        self._unreadable: set[int] = set()
        self._trouble = Trouble(log, "hosts of former scalers cannot be read; going on with what is known")

    async def as_of(self, version: int) -> list[tuple[Scaler, frozenset[str]]]:
        """Each with the hosts that agents of it stand on; of those of this version, which is in force, none.

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

    async def _read(self, places: list[FormerPlace]) -> list[tuple[Scaler, frozenset[str]]]:
        hosts: dict[tuple[str, int], set[str]] = defaultdict(set)
        for place in places:
            hosts[place.scaler, place.config_version].add(place.host_id)
        found = []
        for (name, version), on in hosts.items():
            scaler = await self._scaler(name, version)
            if scaler is not None:
                found.append((scaler, frozenset(on)))
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
