"""The closed set of error types, and the exceptions of the domain.

`ErrorType` names the `type` of every Temporal `ApplicationError` that Hatchway raises.
The exceptions are what the domain raises; the activities translate them. Each says its consequence, not its cause.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum


class ErrorType(StrEnum):
    """Types of ApplicationError. A retry policy, a dispatcher and an operator all branch on these."""

    # how a provision ends, when it does not complete
    INVALID_REQUEST = "InvalidRequest"
    DECLINED = "Declined"
    RELEASED = "Released"
    NO_MATCHING_SCALER = "NoMatchingScaler"
    AUTH_REFUSED = "AuthRefused"
    SPAWN_FAILED = "SpawnFailed"
    ADOPTION_TIMEOUT = "AdoptionTimeout"
    AGENT_LOST = "AgentLost"
    LIFETIME_EXCEEDED = "LifetimeExceeded"
    # what `adopt` answers an agent that comes at the wrong moment
    NO_SUCH_PROVISION = "NoSuchProvision"
    TEARING_DOWN = "TearingDown"
    ADOPTED_BY_OTHER = "AdoptedByOther"
    # what `reserve` answers
    JOB_HAS_AGENT = "JobHasAgent"
    JOB_SERVED = "JobServed"
    ALREADY_ENDED = "AlreadyEnded"
    # activities
    AT_CAPACITY = "AtCapacity"
    CAP_LOCK_CONTENDED = "CapLockContended"
    STORE_UNREACHABLE = "StoreUnreachable"
    BOUND_TO_HOST = "BoundToHost"
    HANDED_BACK = "HandedBack"
    CLOSING = "Closing"
    # what `bind` answers
    NOT_BOUND = "NotBound"
    SECRET_NOT_ALLOWED = "SecretNotAllowed"  # noqa: S105 - a name
    SECRET_UNAVAILABLE = "SecretUnavailable"  # noqa: S105 - a name
    BLIND = "Blind"
    # how a sweep ends, when a step of it failed
    SWEEP_FAILED = "SweepFailed"
    PURGE_FAILED = "PurgeFailed"
    # how a reclaim pass ends that could not look
    RECLAIM_FAILED = "ReclaimFailed"
    OTHER_NAMESPACE = "OtherNamespace"


class DeclineReason(StrEnum):
    """The detail of a `Declined`: why this job gets no agent now. The job may be offered again."""

    AT_CAPACITY = "at-capacity"
    WAIT_TIMEOUT = "wait-timeout"
    NEVER_FITS = "never-fits"
    BACKING_OFF = "backing-off"
    DRAINING = "draining"
    JOB_HAS_AGENT = "job-has-agent"
    JOB_SERVED = "job-served"


class SpawnCode(StrEnum):
    """Why a spawn failed, in the same words for every backend."""

    IMAGE_NOT_FOUND = "image_not_found"
    AUTH_DENIED = "auth_denied"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    RATE_LIMITED = "rate_limited"
    WRONG_ARCHITECTURE = "wrong_architecture"
    NO_AGENT = "no_agent"
    COMMAND_NOT_FOUND = "command_not_found"
    INVALID_SPEC = "invalid_spec"
    CAPACITY = "capacity"
    QUOTA = "quota"
    DAEMON_UNAVAILABLE = "daemon_unavailable"
    DISK_FULL = "disk_full"
    PROVISIONER_FAILED = "provisioner_failed"


class HatchwayError(Exception):
    """Base of everything that the domain raises on purpose. `str()` is one sentence that a stranger can act on."""


class ConfigError(HatchwayError):
    """The configuration cannot be used. `str()` lists every finding, one a line, with file, line and path."""


class StoreUnreachable(HatchwayError):
    """Postgres did not answer. Nothing is known to have happened; calling again settles it."""


class StoreContended(HatchwayError):
    """Postgres answered that a lock or a serialization conflict stood in the way. Nothing happened; call again."""


class SchemaOutdated(HatchwayError):
    """The database is at another revision than this code needs. Says the command to run."""


class SecretError(HatchwayError):
    """A secret reference cannot be served. Names the field and the reference, never a value."""


class SecretNotAllowed(SecretError):
    """The reference exists, but may not be used for this registry host, name or purpose."""


class SecretUnavailable(SecretError):
    """Where the secret lies does not answer, or asks to be left alone: the same reference may be served later."""


class AuthError(HatchwayError):
    """The container's registry credentials cannot be resolved. Names the field and the reference, never a value."""


class AuthUnavailable(AuthError):
    """Whoever hands out the credentials does not answer now: the same question may be answered later."""


class InvalidReference(HatchwayError):
    """An image reference that distribution/reference refuses. Says why, and never echoes the reference itself."""


class SpawnError(HatchwayError):
    """Base of the two consequences that a failed spawn can have."""

    def __init__(self, code: SpawnCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PermanentSpawnError(SpawnError):
    """Trying again cannot help: the provision fails within this attempt."""


class TransientSpawnError(SpawnError):
    """Trying again may help. `retry_after` is what the other side asked for, if it did."""

    def __init__(self, code: SpawnCode, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(code, message)
        self.retry_after = retry_after


class DestroyError(HatchwayError):
    """The compute could not be confirmed gone. The slot stays held and the teardown is tried again.

    `retry_after` is how long the other side asked to be left alone, if it did.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
