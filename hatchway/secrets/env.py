"""Environment values that are secrets: from references to what a spawn puts into an agent's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hatchway.model import EnvSecret, EnvValue
from hatchway.secrets.resolver import Purpose, SecretResolver


@dataclass(frozen=True)
class SpawnEnv:
    """Resolved environment variables. Lives in the worker's memory only."""

    values: Mapping[str, str] = field(repr=False, default_factory=dict)
    secret_values: frozenset[str] = field(repr=False, default=frozenset())
    """Those of `values` that came from a reference: to be redacted from any text that leaves."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Field (`container.env.TOKEN`) to reference, for those that came from one."""


async def resolve_env(env: Mapping[str, EnvValue], resolver: SecretResolver, *, field: str) -> SpawnEnv:
    """Resolve every `{secret: …}` of `env`. `field` names the mapping in errors, as in `container.env`.

    Raises SecretError or SecretNotAllowed for the first that cannot be had, in the order of the mapping.
    """
    values: dict[str, str] = {}
    references: dict[str, str] = {}
    secret_values: set[str] = set()
    for name, value in env.items():
        if isinstance(value, EnvSecret):
            where = f"{field}.{name}"
            secret = await resolver.resolve(value.secret, field=where, purpose=Purpose.env)
            values[name] = secret.reveal()
            secret_values.add(secret.reveal())
            references[where] = value.secret
        else:
            values[name] = value
    return SpawnEnv(values=values, secret_values=frozenset(secret_values), references=references)
