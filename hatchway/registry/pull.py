"""Whose credentials an image is pulled with.

The order: the job's own, for the job's own image > the scaler's `registryAuth` for that host > the host's docker config
where `useHostDockerConfig` says so > ECR, by the registry's name > none. The job's credentials never pull the
operator's image, and one registry's credentials are never tried at another. The first source that has something serves,
also where the registry then refuses it; one that has something and cannot give it fails the pull.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from hatchway.config.schema import EcrFor, Scaler
from hatchway.errors import AuthError, SecretError
from hatchway.model import ContainerSpec
from hatchway.registry.auth import RegistryAuth, resolve_container_registry_auth, scaler_registry_auth
from hatchway.registry.credential_helper import TIME_LIMIT
from hatchway.registry.docker_config import docker_config_credentials
from hatchway.registry.ecr import EcrLogins, NoIdentity
from hatchway.registry.reference import ImageReference, parse_reference
from hatchway.secrets.resolver import SecretResolver

SHOWN_USERS = frozenset(
    {"AWS", "oauth2accesstoken", "_json_key", "_json_key_base64", "00000000-0000-0000-0000-000000000000"}
)
"""What registries of clouds call a kind of password. `<token>` is shown as the identity token that it stands for."""


class Source(StrEnum):
    """In the order in which they are asked."""

    JOB = "job"
    SCALER = "registryAuth"
    DOCKER_CONFIG = "docker config"
    ECR = "ecr"
    NONE = "anonymous"


class Standing(StrEnum):
    """What a source means for one pull."""

    SERVES = "serves"
    WOULD_SERVE = "would serve"
    NOTHING = "nothing"
    OFF = "off"
    FAILS = "fails"


@dataclass(frozen=True)
class Verdict:
    """What one source says of one pull, for people. `why` never holds material."""

    source: Source
    standing: Standing
    why: str


@dataclass(frozen=True)
class Pull:
    """One image that one scaler pulls, for a job or for itself."""

    image: ImageReference
    container: ContainerSpec | None
    scaler: Scaler

    @property
    def of_job(self) -> bool:
        """Whether it is the job's own image, which only the scaler's word lets it be."""
        container = self.container
        return (
            self.scaler.allow_job_image
            and container is not None
            and container.image is not None
            and parse_reference(container.image).normalized == self.image.normalized
        )

    @property
    def of_scaler(self) -> bool:
        """Whether it is an image that the operator has written down."""
        written = (label_set.image for label_set in self.scaler.label_sets if label_set.image is not None)
        return any(parse_reference(image).normalized == self.image.normalized for image in written)


@dataclass(frozen=True)
class _Said:
    why: str
    auth: RegistryAuth | None = field(default=None, repr=False)
    off: bool = False


class Logins:
    """The sources of one worker: what it resolves by reference, its host's docker config, its AWS identity."""

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        ecr: EcrLogins | None = None,
        helper_limit: timedelta = TIME_LIMIT,
    ) -> None:
        self._environ = environ
        self._ecr = ecr or EcrLogins()
        self._helper_limit = helper_limit

    async def credentials(
        self, image: str, container: ContainerSpec | None, scaler: Scaler, resolver: SecretResolver
    ) -> RegistryAuth | None:
        """The credentials for `image`, which is the job's own where the scaler allows it and else the label set's.

        None pulls anonymously. Raises AuthError, SecretError or SecretNotAllowed: what was declared and cannot be
        resolved never becomes an anonymous pull; AuthUnavailable or SecretUnavailable where it may be had later. A
        dockerfile's credentials are for its FROM, which the agent pulls by itself.
        """
        pull = Pull(parse_reference(image), container, scaler)
        for source in Source:
            said = await self._ask(source, pull, resolver)
            if said.auth is not None:
                return said.auth
        return None

    async def explain(
        self, image: str, container: ContainerSpec | None, scaler: Scaler, resolver: SecretResolver
    ) -> list[Verdict]:
        """What each source says, in their order; one that fails stands in the way of those behind it."""
        pull = Pull(parse_reference(image), container, scaler)
        verdicts: list[Verdict] = []
        decided = False
        for source in Source:
            try:
                said = await self._ask(source, pull, resolver)
            except (AuthError, SecretError) as e:
                verdicts.append(Verdict(source, Standing.FAILS, str(e)))
                decided = True
                continue
            serves = said.auth is not None or source is Source.NONE
            if serves:
                standing = Standing.WOULD_SERVE if decided else Standing.SERVES
            else:
                standing = Standing.OFF if said.off else Standing.NOTHING
            decided = decided or serves
            verdicts.append(Verdict(source, standing, said.why))
        return verdicts

    async def _ask(self, source: Source, pull: Pull, resolver: SecretResolver) -> _Said:
        match source:
            case Source.JOB:
                return await self._of_job(pull, resolver)
            case Source.SCALER:
                return await self._of_scaler(pull, resolver)
            case Source.DOCKER_CONFIG:
                return await self._of_docker_config(pull)
            case Source.ECR:
                return await self._of_ecr(pull)
            case Source.NONE:
                return _Said(f"{pull.image.registry} is asked without credentials")

    @staticmethod
    async def _of_job(pull: Pull, resolver: SecretResolver) -> _Said:
        container = pull.container
        if container is None or container.auth is None:
            return _Said("the job declares no credentials")
        if container.image is None:
            return _Said("the job's credentials are for its dockerfile's FROM, which its agent pulls by itself")
        if not pull.scaler.allow_job_image:
            return _Said("the scaler has no `allowJobImage: true`, and the job's credentials are for its own image")
        if not pull.of_job:
            return _Said("the job's credentials are for its own image, which is another one")
        auth = await resolve_container_registry_auth(container, resolver)
        return _Said(f"declared by the job: {_told(auth)}", auth)

    @staticmethod
    async def _of_scaler(pull: Pull, resolver: SecretResolver) -> _Said:
        auth = await scaler_registry_auth(pull.scaler, pull.image.registry, resolver)
        if auth is None:
            return _Said(f"`registryAuth` of {pull.scaler.name} has nothing for {pull.image.registry}")
        return _Said(f"`registryAuth` of {pull.scaler.name}: {_told(auth)}", auth)

    async def _of_docker_config(self, pull: Pull) -> _Said:
        if not pull.scaler.use_host_docker_config:
            return _Said("the scaler has no `useHostDockerConfig: true`", off=True)
        auth, why = await docker_config_credentials(pull.image, self._environ, self._helper_limit)
        if auth is None:
            return _Said(why)
        return _Said(f"{why}: {_kind(auth)}", auth)

    async def _of_ecr(self, pull: Pull) -> _Said:
        registry, whose = pull.image.registry, pull.scaler.ecr_for
        host = self._ecr.recognise(registry)
        if host is None:
            return _Said(f"{registry} is no private registry of ECR")
        if whose is EcrFor.NONE:
            return _Said("the scaler says `ecrFor: none`", off=True)
        if whose is EcrFor.LABEL_SETS and not pull.of_scaler:
            return _Said(
                "the image is the job's own, and the worker's AWS identity serves only images of label sets unless the "
                "scaler says `ecrFor: all-images`",
                off=True,
            )
        try:
            auth = await self._ecr.login(registry, host)
        except NoIdentity as e:
            return _Said(f"{e}, so ECR gives no password")
        until = f" until {auth.expires_at:%Y-%m-%d %H:%M} UTC" if auth.expires_at else ""
        return _Said(f"a password of ECR in {host.region}, by the worker's AWS identity{until}", auth)


def _kind(auth: RegistryAuth) -> str:
    """Of the docker config's: its user is shown where it stands for a kind of password. Any other may be a token."""
    if auth.identity_token:
        return "an identity token"
    return f"user {auth.username}" if auth.username in SHOWN_USERS else "a user and a password"


def _told(auth: RegistryAuth | None) -> str:
    """Which references served, and for which user where that is no secret."""
    if auth is None:
        return "nothing"
    references = ", ".join(f"{field.rpartition('.')[2]} {reference}" for field, reference in auth.references.items())
    by_reference = any(name.endswith(".usernameSecret") for name in auth.references)
    return references if by_reference else f"user {auth.username}, {references}"
