"""The configuration in force, as the cluster has it: one stored version, the same for every worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from hatchway.config.schema import Config
from hatchway.config.versions import capacities, from_stored, to_stored
from hatchway.errors import ConfigError
from hatchway.secrets.resolver import AwsOnce, SecretResolver
from hatchway.store.config_versions import Applied, ConfigVersions
from hatchway.store.rows import SpawnRow

FRESH_FOR_SECONDS = 1.0
"""A new version is in force everywhere within 2 s of its apply: this, and the time that a call takes."""


class CurrentConfig:
    """Reads configuration versions, and keeps them: a version never changes once it is written."""

    def __init__(self, versions: ConfigVersions, environ: Mapping[str, str] = os.environ) -> None:
        self._versions = versions
        self._environ = environ
        self._aws = AwsOnce()
        self._known: dict[int, Config] = {}
        self._current: int | None = None
        self._read_at = -FRESH_FOR_SECONDS

    async def current(self) -> tuple[int, Config]:
        """The version in force and its content. Raises ConfigError when the cluster has none yet."""
        if self._current is None or time.monotonic() - self._read_at >= FRESH_FOR_SECONDS:
            found = await self._versions.current()
            if found is None:
                raise ConfigError(
                    "the cluster has no configuration yet: start one worker with `--config FILE`, which stores it"
                )
            self._known[found.version] = self._known.get(found.version) or from_stored(found.content)
            self._current = found.version
            self._read_at = time.monotonic()
        return self._current, self._known[self._current]

    async def newer_than(self, version: int) -> bool:
        """Whether another version is in force by now. It is read at once, however fresh the last look is."""
        self._read_at = -FRESH_FOR_SECONDS
        return (await self.current())[0] != version

    async def version(self, number: int) -> Config:
        """The content of one version: a running provision keeps the one that it was reserved under."""
        if number not in self._known:
            found = await self._versions.get(number)
            if found is None:
                raise ConfigError(f"configuration version {number} is not in the database any more")
            self._known[number] = from_stored(found.content)
        return self._known[number]

    async def of_row(self, row: SpawnRow) -> Config:
        """The content that this agent's slot was reserved under."""
        if row.config_version is None:
            raise ConfigError(f"agent {row.agent_id} was not reserved by this release: its row names no configuration")
        return await self.version(row.config_version)

    def resolver(self, config: Config) -> SecretResolver:
        """A resolver of the secret references that this configuration allows."""
        return SecretResolver(config.secrets, self._environ, self._aws)


async def apply(
    versions: ConfigVersions, config: Config, *, source: str, by: str, note: str | None, expected_version: int | None
) -> Applied:
    """Make this the cluster's configuration and its caps the caps. Raises ConfigVersionConflict."""
    return await versions.apply(
        to_stored(config).content,
        source=source,
        by=by,
        note=note,
        expected_version=expected_version,
        capacities=capacities(config),
    )
