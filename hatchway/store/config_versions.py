"""Config versions: the cluster's one history of its config, and the caps that each version sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString

from hatchway.errors import HatchwayError
from hatchway.store.pool import Database
from hatchway.store.rows import Wake, wakes


class ConfigVersionConflict(HatchwayError):
    """Somebody else applied a config in between. Nothing was changed."""

    def __init__(self, expected: int, current: int) -> None:
        super().__init__(
            f"the cluster's config is at version {current}, not {expected}: look at what changed "
            "(`hatchway config history`), then apply again on top of it"
        )
        self.expected = expected
        self.current = current


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A scaler whose type, or place, is to become another while agents of the old one live, or wait to be made."""

    scaler: str
    was: str
    becomes: str
    agents: int
    waiters: int

    def __str__(self) -> str:
        counted = ((self.agents, "agent"), (self.waiters, "waiting job"))
        there = [f"{number} {what}{'' if number == 1 else 's'}" for number, what in counted if number]
        return (
            f"scaler {self.scaler} cannot change from {self.was} to {self.becomes} while it has {' and '.join(there)}: "
            "give the new one another name, or take the old one out, apply, and try again when its agents have gone"
        )


class ScalerTypeInUse(HatchwayError):
    """An apply would change the type of scalers that are in use. Nothing was changed."""

    def __init__(self, changes: Iterable[TypeChange]) -> None:
        self.changes = list(changes)
        super().__init__("; ".join(map(str, self.changes)))


@dataclass(frozen=True, slots=True)
class Capacity:
    """The caps of one scope. None = no cap."""

    scope: str
    """`global`, `pool:<name>` or `scaler:<name>`."""
    scaler: str | None = None
    """The scaler's name, for a scaler's scope."""
    pool: str | None = None
    """`pool:<name>`, for a scaler that is in one."""
    max_agents: int | None = None
    max_mcpu: int | None = None
    max_mem_bytes: int | None = None
    backend_type: str | None = None
    """Of a scaler: its type, and the place of its instances, which must not change while it is in use. None: not looked
    at."""

    @classmethod
    def everything(cls, max_agents: int | None) -> Capacity:
        return cls("global", max_agents=max_agents)

    @classmethod
    def of_scaler(
        cls, name: str, max_agents: int | None, pool: str | None = None, backend_type: str | None = None
    ) -> Capacity:
        return cls(
            f"scaler:{name}",
            scaler=name,
            pool=pool and f"pool:{pool}",
            max_agents=max_agents,
            backend_type=backend_type,
        )


@dataclass(frozen=True, slots=True)
class ScopeUse:
    """What counts in one scope now, and whether it takes more."""

    scope: str
    scaler: str | None
    agents: int
    mcpu: int
    mem_bytes: int
    accepting: bool
    retired: bool
    """A scaler that left the configuration."""


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    version: int
    parent: int | None
    source: str
    content: dict[str, Any]
    sha256: str
    applied_by: str
    note: str | None
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class Applied:
    version: int
    wake: list[Wake]
    """Who got a slot by it, and who can no longer get one: signal each, its next reserve tells it."""


_COLUMNS: LiteralString = "version, parent, source, content, sha256, applied_by, note, applied_at"


class ConfigVersions:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def current(self) -> ConfigVersion | None:
        """The newest version; None before the first apply."""
        row = await self._db.fetch_one(
            f"select {_COLUMNS} from scaler_config_versions order by version desc limit 1"  # noqa: S608 - a constant
        )
        return None if row is None else ConfigVersion(*row)

    async def get(self, version: int) -> ConfigVersion | None:
        row = await self._db.fetch_one(
            f"select {_COLUMNS} from scaler_config_versions where version = %(version)s",  # noqa: S608
            {"version": version},
        )
        return None if row is None else ConfigVersion(*row)

    async def history(self) -> list[ConfigVersion]:
        """Every version, newest first."""
        rows = await self._db.fetch_all(
            f"select {_COLUMNS} from scaler_config_versions order by version desc"  # noqa: S608
        )
        return [ConfigVersion(*row) for row in rows]

    async def use(self) -> dict[str, ScopeUse]:
        """Every scope that was ever configured, by its name."""
        rows = await self._db.fetch_all(
            "select scope, scaler_name, agents, mcpu, mem_bytes, accepting, retired from scaler_capacity order by scope"
        )
        return {row[0]: ScopeUse(*row) for row in rows}

    async def type_changes(self, capacities: Iterable[Capacity]) -> list[TypeChange]:
        """What an apply of these would be refused for, as it stands now."""
        found = await self._db.fetch_value(
            "select hatchway_type_changes(%(capacities)s::text::jsonb)",
            {"capacities": json.dumps([asdict(c) for c in capacities])},
        )
        return [TypeChange(**change) for change in found]

    async def apply(
        self,
        content: Mapping[str, Any],
        *,
        source: str,
        by: str,
        note: str | None,
        expected_version: int | None,
        capacities: Iterable[Capacity],
    ) -> Applied:
        """Make this the cluster's config and its caps the caps, all or nothing, under the admission lock.

        `capacities` are all scopes; a scaler that is not among them takes no new work. `expected_version` None takes
        whatever is there, 0 only an empty cluster. Raises ConfigVersionConflict and ScalerTypeInUse.
        """
        answer = await self._db.call(
            "hatchway_apply_config",
            {
                "content": dict(content),
                "source": source,
                "by": by,
                "note": note,
                "sha256": digest(content),
                "expected_version": expected_version,
                "capacities": [asdict(c) for c in capacities],
            },
            admission=True,
        )
        if answer["answer"] == "conflict":
            raise ConfigVersionConflict(expected_version or 0, answer["current"])
        if answer["answer"] == "type-changed":
            raise ScalerTypeInUse(TypeChange(**change) for change in answer["scalers"])
        return Applied(answer["version"], wakes(answer["wake"]))


def digest(content: Mapping[str, Any]) -> str:
    """sha256 of the content, however its keys were ordered."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
