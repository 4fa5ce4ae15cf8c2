"""Which failures say something about a scaler, so that it backs off for every job, and which only about one job."""

from __future__ import annotations

from hatchway.config.schema import Scaler
from hatchway.errors import SpawnCode
from hatchway.model import EndReason, ProvisionRequest

OF_THE_BACKEND = frozenset({SpawnCode.DAEMON_UNAVAILABLE, SpawnCode.DISK_FULL, SpawnCode.CAPACITY, SpawnCode.QUOTA})
"""Whatever the job brought: the next one meets them too."""

UNREGISTERED = {
    EndReason.ADOPTION_TIMEOUT: ("adoption_timeout", "the agent did not register before its deadline"),
    EndReason.COMPUTE_EXITED: ("agent_exited", "the agent ended before it had registered"),
}
"""Ends of agents that were spawned and that nobody heard of: the code and the words that they are counted with."""


def blames_scaler(code: SpawnCode | None, request: ProvisionRequest, scaler: Scaler) -> bool:
    """Whether the scaler would fail other jobs the same way. `code` None: a backend's bug.

    When in doubt it is the job's: one job must not be able to stop a scaler for all.
    """
    if code is None or code in OF_THE_BACKEND:
        return True
    if brings_image(request, scaler):
        return False
    container = request.container
    brings_secrets = container is not None and (container.auth is not None or bool(container.env))
    match code:
        case SpawnCode.AUTH_DENIED:
            return not brings_secrets
        case SpawnCode.INVALID_SPEC:
            return not brings_secrets and request.resources is None
        case _:
            return True


def brings_image(request: ProvisionRequest, scaler: Scaler) -> bool:
    """Whether the agent runs on an image that the job names."""
    return scaler.allow_job_image and request.container is not None and request.container.image is not None
