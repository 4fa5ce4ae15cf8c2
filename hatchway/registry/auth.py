"""Container registry credentials: material in a worker's memory, and its redacted shadow for Temporal."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


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
