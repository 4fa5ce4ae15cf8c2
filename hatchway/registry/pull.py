"""Whose credentials an image is pulled with.

The order: the job's own, for the job's own image > the scaler's `registryAuth` for that host > none. The job's
credentials never pull the operator's image, and one registry's credentials are never tried at another.
"""

from __future__ import annotations

from hatchway.config.schema import Scaler
from hatchway.model import ContainerSpec
from hatchway.registry.auth import RegistryAuth, resolve_container_registry_auth, scaler_registry_auth
from hatchway.registry.reference import parse_reference
from hatchway.secrets.resolver import SecretResolver


async def pull_credentials(
    image: str, container: ContainerSpec | None, scaler: Scaler, resolver: SecretResolver
) -> RegistryAuth | None:
    """The credentials for `image`, which is the job's own where the scaler allows it and else the label set's.

    None pulls anonymously. Raises AuthError, SecretError or SecretNotAllowed: what was declared and cannot be resolved
    never becomes an anonymous pull. A dockerfile's credentials are for its FROM, which the agent pulls by itself.
    """
    of_job = container is not None and container.image is not None and scaler.allow_job_image
    if of_job and (auth := await resolve_container_registry_auth(container, resolver)) is not None:
        return auth
    return await scaler_registry_auth(scaler, parse_reference(image).registry, resolver)
