"""Which image one spawn runs, and whose credentials it is pulled with.

The order of credentials: the job's own, for the job's own image > the scaler's `registryAuth` for that host > none.
The job's credentials never pull the operator's image, and one registry's credentials are never tried at another.
"""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.config.schema import LabelSet, RegistryAuthConfig, Scaler
from hatchway.errors import AuthError, InvalidReference
from hatchway.model import ContainerAuth
from hatchway.registry.auth import ContainerSpawn, RegistryAuth, resolve_credentials
from hatchway.registry.reference import ImageReference, parse_reference, parse_registry_host, same_registry
from hatchway.secrets.resolver import SecretResolver


@dataclass(frozen=True)
class Pull:
    """The image to run and the credentials to pull it with; `auth` None pulls anonymously."""

    image: ImageReference
    auth: RegistryAuth | None
    of_job: bool
    """The image is the job's own, not the label set's."""


async def plan_pull(
    job: ContainerSpawn | None, scaler: Scaler, label_set: LabelSet, resolver: SecretResolver
) -> Pull | None:
    """What to pull for one spawn on this label set; None when neither side names an image (bare metal).

    Raises AuthError, SecretError or SecretNotAllowed when the scaler's own credentials cannot be resolved.
    """
    if job is not None and scaler.allow_job_image:
        auth = job.auth or await _of_scaler(scaler, job.image, resolver)
        return Pull(image=job.image, auth=auth, of_job=True)
    if label_set.image is None:
        return None
    image = _parse(scaler, label_set.image)
    return Pull(image=image, auth=await _of_scaler(scaler, image, resolver), of_job=False)


async def _of_scaler(scaler: Scaler, image: ImageReference, resolver: SecretResolver) -> RegistryAuth | None:
    for index, config in enumerate(scaler.registry_auth):
        field = f"scaler {scaler.name}: registryAuth[{index}]"
        if same_registry(_host(config, field), image.registry):
            declared = ContainerAuth(
                username=config.username, usernameSecret=config.username_secret, tokenSecret=config.token_secret
            )
            return await resolve_credentials(declared, image.registry, resolver, field=field, source="scaler")
    return None


def _parse(scaler: Scaler, image: str) -> ImageReference:
    try:
        return parse_reference(image)
    except InvalidReference as e:
        raise AuthError(f"scaler {scaler.name}: the label set's image: {e}") from None


def _host(config: RegistryAuthConfig, field: str) -> str:
    try:
        return parse_registry_host(config.registry)
    except InvalidReference as e:
        raise AuthError(f"{field}.registry: {e}") from None
