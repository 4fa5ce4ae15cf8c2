"""The registry credentials that a job's container declares, and what one spawn needs of it.

Credentials are declared by reference and resolved where they are used: material stays in the worker's memory, and what
crosses Temporal is `RedactedAuth`. A failed resolution fails the provision; nothing falls back to an anonymous pull.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import Field

from hatchway.config.schema import Scaler
from hatchway.errors import AuthError, InvalidReference
from hatchway.model import ContainerAuth, ContainerSpec, Payload
from hatchway.registry.reference import ImageReference, parse_reference, parse_registry_host, same_registry
from hatchway.secrets.env import SpawnEnv, resolve_env
from hatchway.secrets.resolver import Purpose, SecretResolver

DEFAULT_USERNAME = "x-access-token"
"""What registries that look at the token only (ghcr.io and its like) take for a user name."""
IDENTITY_TOKEN_USERNAME = "<token>"  # noqa: S105 - Docker's marker that the password is an OAuth refresh token
FIELD = "container.auth"


@dataclass(frozen=True)
class RegistryAuth:
    """Credentials for one registry. Lives in the worker's memory only; never in a payload, a row or a log line."""

    registry_host: str
    """As `ImageReference.registry` spells it."""
    username: str
    token: str = field(repr=False)
    identity_token: bool = False
    """The token is an OAuth refresh token, to be sent as `identitytoken` and not as a password."""
    source: str = "job"
    """Who brought it, for people: `job`, `scaler`."""
    expires_at: datetime | None = None
    references: Mapping[str, str] = field(default_factory=dict)
    """Field to reference, for what was resolved."""

    @property
    def secret_values(self) -> frozenset[str]:
        """What no error and no log may quote: the token, and the user name where it came by reference too."""
        by_reference = any(name.endswith(".usernameSecret") for name in self.references)
        return frozenset({self.token, self.username} if by_reference else {self.token})


@dataclass(frozen=True)
class ContainerSpawn:
    """What one spawn needs of a job's container: its image, and the material for it."""

    image: ImageReference
    auth: RegistryAuth | None
    env: SpawnEnv


class RedactedAuth(Payload):
    """What may be known of a container's resolution outside this process. Never material.

    `image` and `registry` are normalised; `references` maps the field to the reference that was resolved for it;
    `expires_at` is set where the credentials say when they end.
    """

    image: str | None = None
    registry: str | None = None
    references: dict[str, str] = Field(default_factory=dict)
    expires_at: datetime | None = None


async def resolve_container_registry_auth(
    container: ContainerSpec | None, resolver: SecretResolver
) -> RegistryAuth | None:
    """The credentials that the job declared, or None when it declared none. Also for a dockerfile, for its FROM.

    Raises AuthError for a declaration that cannot be meant, SecretError or SecretNotAllowed for a reference that cannot
    be had; each names the field and the reference.
    """
    if container is None or container.auth is None:
        return None
    host = _registry_of(container, container.auth)
    return await resolve_credentials(container.auth, host, resolver, field=FIELD, source="job")


async def resolve_container_spawn(container: ContainerSpec | None, resolver: SecretResolver) -> ContainerSpawn | None:
    """Image, credentials and environment; None without a container, and for a dockerfile build.

    An agent cannot be spawned from an image that its own job has yet to build: such a job runs on the label set's.
    Raises as `resolve_container_registry_auth` does.
    """
    if container is None or container.image is None:
        return None
    return ContainerSpawn(
        image=_image_of(container.image),
        auth=await resolve_container_registry_auth(container, resolver),
        env=await resolve_env(container.env, resolver, field="container.env"),
    )


async def check_container_auth(container: ContainerSpec | None, resolver: SecretResolver) -> RedactedAuth:
    """Resolve everything that the container refers to, and answer what may be told of it. Raises as the others do."""
    if container is None:
        return RedactedAuth()
    auth = await resolve_container_registry_auth(container, resolver)
    env = await resolve_env(container.env, resolver, field="container.env")
    image = _image_of(container.image) if container.image is not None else None
    return RedactedAuth(
        image=image.normalized if image else None,
        registry=auth.registry_host if auth else image.registry if image else None,
        references={**(auth.references if auth else {}), **env.references},
        expires_at=auth.expires_at if auth else None,
    )


async def scaler_registry_auth(scaler: Scaler, host: str, resolver: SecretResolver) -> RegistryAuth | None:
    """The scaler's own credentials for the registry `host`, or None when it has none. Raises as the others do."""
    for index, own in enumerate(scaler.registry_auth):
        field = f"scaler {scaler.name}: registryAuth[{index}]"
        if same_registry(_host_of(own.registry, field), host):
            declared = ContainerAuth(
                username=own.username, usernameSecret=own.username_secret, tokenSecret=own.token_secret
            )
            return await resolve_credentials(declared, host, resolver, field=field, source="scaler")
    return None


async def resolve_credentials(
    auth: ContainerAuth, host: str, resolver: SecretResolver, *, field: str, source: str
) -> RegistryAuth:
    """The material of one declaration, for the registry `host`. The user name is the plain one, else by reference,
    else `x-access-token`. Raises AuthError, SecretError or SecretNotAllowed.
    """
    if auth.tokenSecret is None:
        raise AuthError(f"{field}.tokenSecret is required: registry credentials without a token cannot log in anywhere")
    purpose = Purpose.registry(host)
    references: dict[str, str] = {}
    username, where = auth.username, f"{field}.username"
    if username is None and auth.usernameSecret is not None:
        where = f"{field}.usernameSecret"
        username = (await resolver.resolve(auth.usernameSecret, field=where, purpose=purpose)).reveal()
        references[where] = auth.usernameSecret
    if username is not None:
        _check_username(username, where)
    where = f"{field}.tokenSecret"
    token = (await resolver.resolve(auth.tokenSecret, field=where, purpose=purpose)).reveal()
    references[where] = auth.tokenSecret
    return RegistryAuth(
        registry_host=host,
        username=username if username is not None else DEFAULT_USERNAME,
        token=token,
        identity_token=username == IDENTITY_TOKEN_USERNAME,
        source=source,
        references=references,
    )


def _check_username(username: str, field: str) -> None:
    if not username:
        raise AuthError(f"{field} is empty; leave it out to log in as {DEFAULT_USERNAME}")
    # RFC 7617: basic auth splits at the first colon and carries no control characters.
    if ":" in username or not username.isprintable():
        raise AuthError(f"{field} holds a colon or a control character, which a registry login cannot carry")


def _registry_of(container: ContainerSpec, auth: ContainerAuth) -> str:
    """The registry that the credentials are for. The image's, or the one that a dockerfile's auth names."""
    declared = _host_of(auth.registry, FIELD) if auth.registry is not None else None
    if container.image is None:
        if declared is None:
            raise AuthError(f"{FIELD}.registry is required with a dockerfile, whose FROM does not say where to log in")
        return declared
    host = _image_of(container.image).registry
    if declared is not None and not same_registry(declared, host):
        raise AuthError(
            f"{FIELD}.registry is {declared}, and the image comes from {host}: "
            "credentials are sent only to the registry that they were declared for"
        )
    return host


def _host_of(text: str, field: str) -> str:
    try:
        return parse_registry_host(text)
    except InvalidReference as e:
        raise AuthError(f"{field}.registry: {e}") from None


def _image_of(text: str) -> ImageReference:
    try:
        return parse_reference(text)
    except InvalidReference as e:
        raise AuthError(f"container.image: {e}") from None
