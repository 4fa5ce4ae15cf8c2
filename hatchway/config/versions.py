"""A configuration as the cluster stores it: canonical content, its digest, and the caps that it sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from hatchway.config.problems import sentences
from hatchway.config.schema import Config
from hatchway.errors import ConfigError

GLOBAL_SCOPE = "global"


def scaler_scope(name: str) -> str:
    return f"scaler:{name}"


@dataclass(frozen=True)
class StoredConfig:
    """What goes into the database. `content` holds references to secrets, never a secret."""

    content: dict[str, Any] = field(repr=False)
    sha256: str


@dataclass(frozen=True)
class Capacity:
    """One cap. `scope` is `global` or `scaler:<name>`; `max_agents` None is no cap; `scaler_name` None for `global`."""

    scope: str
    scaler_name: str | None
    max_agents: int | None


def to_stored(config: Config) -> StoredConfig:
    """The configuration as JSON, and its sha256: equal for two files that say the same.

    Keys at their default are left out. So a file that spells a default out is the same configuration, and a worker of
    the previous release can read what a newer one stored, as long as nothing new is used.
    """
    content: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return StoredConfig(content=content, sha256=hashlib.sha256(canonical_json(content).encode()).hexdigest())


def from_stored(content: Mapping[str, Any]) -> Config:
    """The configuration that `to_stored` made this content of. Raises ConfigError when this release cannot read it."""
    try:
        return Config.model_validate(dict(content), by_alias=True, by_name=False)
    except ValidationError as e:
        raise ConfigError(
            "the stored configuration cannot be read by this release; a newer one may have written it:\n"
            + "\n".join(sentences(e))
        ) from None


def canonical_json(content: Mapping[str, Any]) -> str:
    """One text per content: keys sorted, no white space, UTF-8 as it is."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def capacities(config: Config) -> list[Capacity]:
    """Every cap that this configuration sets, the global one first, then scaler by scaler in the order of the file."""
    return [
        Capacity(GLOBAL_SCOPE, None, config.global_max_agents),
        *(Capacity(scaler_scope(scaler.name), scaler.name, scaler.max_agents) for scaler in config.scalers),
    ]
