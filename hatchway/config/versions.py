"""A configuration as the cluster stores it: canonical content, its digest, and the caps that it sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from hatchway.config.problems import sentences
from hatchway.config.schema import Config, ResourceCap, Scaler
from hatchway.errors import ConfigError
from hatchway.store.config_versions import Capacity

GLOBAL_SCOPE = "global"


def pool_scope(name: str) -> str:
    return f"pool:{name}"


@dataclass(frozen=True)
class StoredConfig:
    """What goes into the database. `content` holds references to secrets, never a secret."""

    content: dict[str, Any] = field(repr=False)
    sha256: str


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
    """Every cap that this configuration sets: the global one, then the pools, then the scalers as the file has them."""
    return [
        _capped(Capacity(GLOBAL_SCOPE, max_agents=config.global_max_agents), config.global_resource_cap),
        *(_capped(Capacity(pool_scope(p.name), max_agents=p.max_agents), p) for p in config.machine_pools),
        *(
            _capped(Capacity.of_scaler(s.name, s.max_agents, s.machine_pool, _kind(s)), s.resource_cap)
            for s in config.scalers
        ),
    ]


def _kind(scaler: Scaler) -> str:
    """As `hatchway_kind` in the database says it of the stored configuration."""
    if scaler.ec2 is None:
        return scaler.type.value
    at = "" if scaler.ec2.endpoint_url is None else f" at {scaler.ec2.endpoint_url}"
    return f"{scaler.type.value} in {scaler.ec2.region}{at}"


def _capped(capacity: Capacity, cap: ResourceCap | None) -> Capacity:
    if cap is None:
        return capacity
    return replace(capacity, max_mcpu=cap.max_mcpu, max_mem_bytes=cap.max_mem_bytes)
