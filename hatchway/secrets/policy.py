"""What a secret may be used for: the operator's word in `secrets.contexts`, against whoever asks. Pure: no I/O.

A requester writes references, never values, and a reference alone must not carry a secret to a place of their choice:

- a context with `registries` serves the registry credentials of exactly those hosts;
- a context without `registries` serves the environments of agents, where the job's own code can read the value;
- a context with `targets` signs events to exactly those hosts, or logs in there, and serves no environments either;
- `env: true` lets a context do so too, `env: false` with neither `registries` nor `targets` lets it do nothing;
- `names` limits either to the names that match one of its globs (`*` also matches a `/`). In Secrets Manager a glob
  without a `#` is for the secret and all its keys, and one with a `#` for those keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar

from hatchway.config.schema import SecretContext, SecretsManagerContext
from hatchway.errors import InvalidReference, SecretError, SecretNotAllowed
from hatchway.registry.reference import parse_registry_host, same_registry

Context = SecretContext


@dataclass(frozen=True)
class Purpose:
    """What the value is wanted for: `Purpose.registry("ghcr.io")`, `Purpose.target("hooks.example.com")`, or
    `Purpose.env`."""

    host: str | None = None
    """The registry it is sent to, as `ImageReference.registry` spells it; None for an agent's environment."""
    target_host: str | None = None
    """The host of an event target that it signs requests to, or logs in at."""
    env: ClassVar[Purpose]

    @classmethod
    def registry(cls, host: str) -> Purpose:
        return cls(host)

    @classmethod
    def target(cls, host: str) -> Purpose:
        return cls(target_host=host)


Purpose.env = Purpose()


def split_reference(reference: str, field: str) -> tuple[str, str]:
    """`<context>:<secret-name>` as its two halves; the first colon splits. Raises SecretError when one is missing."""
    context, colon, name = reference.partition(":")
    if not colon or not context or not name:
        raise SecretError(f"{field} must be a reference of the form <context>:<secret-name>")
    return context, name


def permitted(contexts: Mapping[str, Context], reference: str, *, field: str, purpose: Purpose) -> tuple[Context, str]:
    """The context that may serve this reference for this purpose, and the secret's name in it.

    Raises SecretError for a reference that names nothing, SecretNotAllowed for one that is not meant for the purpose.
    """
    context_name, name = split_reference(reference, field)
    context = contexts.get(context_name)
    if context is None:
        known = ", ".join(sorted(contexts)) or "none"
        raise SecretError(f"{field}: no secret context {context_name!r} is configured (configured: {known})")
    if purpose.target_host is not None:
        _check_target(context, context_name, reference, field, purpose.target_host)
    elif purpose.host is None:
        _check_env(context, context_name, reference, field)
    else:
        _check_registry(context, context_name, reference, field, purpose.host)
    if not any(_serves(context, glob, name) for glob in context.names):
        raise SecretNotAllowed(f"{field}: the context {context_name!r} does not serve {reference!r}, see its `names`")
    return context, name


def _serves(context: Context, glob: str, name: str) -> bool:
    # `#` begins a key in Secrets Manager only; a file may have one in its name.
    if isinstance(context, SecretsManagerContext) and "#" not in glob:
        name = name.partition("#")[0]
    return fnmatchcase(name, glob)


def _check_env(context: Context, context_name: str, reference: str, field: str) -> None:
    serves_env = context.env if context.env is not None else not (context.registries or context.targets)
    if not serves_env:
        kept = "registries" if context.registries or not context.targets else "event targets"
        raise SecretNotAllowed(
            f"{field}: {reference!r} is not for environments: the context {context_name!r} is kept for {kept}; "
            "use another context, or set `env: true` on it"
        )


def _check_target(context: Context, context_name: str, reference: str, field: str, host: str) -> None:
    if host.lower() not in {listed.lower() for listed in context.targets}:
        allowed = ", ".join(context.targets) or "none"
        raise SecretNotAllowed(
            f"{field}: {reference!r} may not be used for {host}: the context {context_name!r} lists the targets "
            f"{allowed}"
        )


def _check_registry(context: Context, context_name: str, reference: str, field: str, host: str) -> None:
    if not any(_is(registry, host) for registry in context.registries):
        allowed = ", ".join(context.registries) or "none"
        raise SecretNotAllowed(
            f"{field}: {reference!r} may not be sent to {host}: the context {context_name!r} lists the registries "
            f"{allowed}"
        )


def _is(listed: str, host: str) -> bool:
    try:
        return same_registry(parse_registry_host(listed), host)
    except InvalidReference:
        # The load check refuses such an entry; a stored configuration that has one all the same allows nothing by it.
        return False
