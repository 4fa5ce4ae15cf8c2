"""Payload models of workflows, updates, signals and queries.

Durations come in as seconds or ISO 8601 and go out as seconds. Field names are snake_case, except inside `container`,
which keeps the camelCase of the job definitions that it is copied from. What they have in common stands in
`hatchway.payloads`, what a job says of itself in `hatchway.job`, and what the workflows that look after everything take
and answer in `hatchway.passes`; all of it can be imported from here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from hatchway.job import (
    ROTATE,
    ContainerAuth,
    ContainerSpec,
    EnvSecret,
    EnvValue,
    ResourceAmounts,
    ResourceRequest,
)
from hatchway.passes import (
    PurgeInput,
    PurgeKind,
    PurgeRequest,
    ReclaimOutcome,
    ReclaimRequest,
    Sighting,
    SweepOutcome,
    SweepRequest,
    SweptStep,
    WarmPoolOutcome,
    WarmPoolRequest,
)
from hatchway.payloads import Id, JobId, Label, Labels, Payload, SecretRef, Text, Timeout

__all__ = [
    "COUNTED_AHEAD",
    "ROTATE",
    "AdoptRequest",
    "AdoptedSpec",
    "BindRequest",
    "ComputeExit",
    "ComputeRef",
    "CondemnRequest",
    "ContainerAuth",
    "ContainerSpec",
    "EndReason",
    "EnvSecret",
    "EnvValue",
    "FollowedEnded",
    "ForgetRequest",
    "GrantedRequest",
    "Id",
    "JobResult",
    "Label",
    "Labels",
    "OnCapacity",
    "Payload",
    "ProvisionOutcome",
    "ProvisionRequest",
    "ProvisionState",
    "ProvisionStatus",
    "PurgeInput",
    "PurgeKind",
    "PurgeRequest",
    "ReclaimOutcome",
    "ReclaimRequest",
    "ReleaseRequest",
    "ResourceAmounts",
    "ResourceRequest",
    "ScaleDownReason",
    "SecretRef",
    "Sighting",
    "StageEntry",
    "StageTimes",
    "StatusRequest",
    "SweepOutcome",
    "SweepRequest",
    "SweptStep",
    "TeardownFacts",
    "TeardownOutcome",
    "TeardownRequest",
    "TeardownState",
    "Text",
    "Timeout",
    "WaitRequest",
    "WarmPoolOutcome",
    "WarmPoolRequest",
]


class ProvisionState(StrEnum):
    QUEUED = "queued"
    RESERVING = "reserving"
    RESOLVING = "resolving"
    SPAWNING = "spawning"
    AWAITING_ADOPTION = "awaiting-adoption"
    ACTIVE = "active"
    TEARING_DOWN = "tearing-down"
    CLOSED = "closed"


class EndReason(StrEnum):
    """Why a provision ended, in Hatchway's own words."""

    COMPLETED = "completed"
    IDLE = "idle"
    DRAINED = "drained"
    RELEASED = "released"
    CANCELLED = "cancelled"
    MAX_LIFETIME = "max-lifetime"
    COMPUTE_EXITED = "compute-exited"
    HEARTBEAT_TIMEOUT = "heartbeat-timeout"
    ADOPTION_TIMEOUT = "adoption-timeout"
    SPAWN_FAILED = "spawn-failed"
    AUTH_REFUSED = "auth-refused"
    DECLINED = "declined"
    NO_MATCHING_SCALER = "no-matching-scaler"
    OPERATOR = "operator"


class ScaleDownReason(StrEnum):
    """Why compute is torn down, in the words of the wire."""

    IDLE = "idle"
    JOB_COMPLETE = "job-complete"
    HEARTBEAT_TIMEOUT = "heartbeat-timeout"
    SPAWN_TIMEOUT = "spawn-timeout"
    DRAIN = "drain"
    SHUTDOWN = "shutdown"


class JobResult(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class TeardownState(StrEnum):
    CONFIRMED = "confirmed"
    ACCEPTED = "accepted"
    PENDING = "pending"


class OnCapacity(StrEnum):
    WAIT = "wait"
    DECLINE = "decline"


class ProvisionRequest(Payload):
    """The input of ProvisionWorkflow: who needs an agent, of what kind, and for how long they will wait."""

    labels: Labels
    exclude_labels: Labels = []
    job_id: JobId | None = None
    run_id: JobId | None = None
    container: ContainerSpec | None = None
    resources: ResourceRequest | None = None
    role: Label | None = None
    priority: Annotated[int, Field(ge=1, le=5)] = 3
    on_capacity: OnCapacity = OnCapacity.WAIT
    wait_timeout: Timeout = timedelta(hours=1)
    spawn_timeout: Timeout | None = None
    adoption_timeout: Timeout | None = None
    max_lifetime: Timeout | None = None
    warm_for: Id | None = None
    """Of a warm pool's own fill: the scaler that the agent is made for, ahead of jobs."""

    @model_validator(mode="after")
    def _warm_is_for_no_job(self) -> Self:
        if self.warm_for is None:
            return self
        if self.job_id or self.run_id or self.container or self.resources or self.role:
            raise ValueError("warm_for makes an agent ahead of jobs: leave job_id, run_id, container, resources and "
                             "role out")  # fmt: skip
        if self.on_capacity is not OnCapacity.DECLINE:
            raise ValueError("warm_for never waits: say on_capacity decline")
        return self

    @field_validator("container", mode="before")
    @classmethod
    def _image_string(cls, value: Any) -> Any:
        return {"image": value} if isinstance(value, str) else value


class StageTimes(Payload):
    """Seconds spent in each stage; a stage that was not entered is 0."""

    queued: float = 0
    reserving: float = 0
    resolving: float = 0
    spawning: float = 0
    awaiting_adoption: float = 0
    active: float = 0
    tearing_down: float = 0


class ProvisionOutcome(Payload):
    """What a completed provision answers: an agent was adopted, and later released."""

    agent_id: str
    scaler: str
    result: JobResult
    end_reason: EndReason
    stages: StageTimes
    teardown: TeardownState


class StageEntry(Payload):
    state: ProvisionState
    since: datetime


class ComputeRef(Payload):
    """Where an agent's compute is. `ref` is the backend's own id of it."""

    backend: str
    ref: str
    host_id: str
    endpoint: str | None = None
    engine: str | None = None
    """The container engine's own id, which `host_id` need not be: an operator may give that."""


class TeardownFacts(Payload):
    """What a teardown may rely on: what spawn wrote onto the row, never the current config."""

    backend_type: str
    host_id: str
    provisioning_targets: list[str] = []
    endpoint: str | None = None
    compute: ComputeRef | None = None
    engine: str | None = None
    """The only engine whose "gone" counts; None: none was ever asked for it, or the backend has no such thing."""


class ComputeExit(Payload):
    """The compute ended by itself. `log_tail` only before adoption: <= 50 lines and 8 KB, redacted."""

    agent_id: str
    exit_code: int | None = None
    log_tail: str = ""


COUNTED_AHEAD = 1000
"""How many of those ahead in a line are counted: it is done under the admission lock."""


class ProvisionStatus(Payload):
    """The answer of the `status` query."""

    agent_id: str
    state: ProvisionState
    since: datetime
    scaler: str | None = None
    waiting_for: str
    deadline_at: datetime | None = None
    line_position: int | None = None
    """1 is next. Nobody counts further than a thousand ahead: above `COUNTED_AHEAD` it only says "far back"."""
    last_error: str | None = None
    compute: ComputeRef | None = None
    adopted_by: str | None = None
    stages: list[StageEntry] = []
    next_step: str


class AdoptRequest(Payload):
    agent_id: str
    instance_id: Id
    registration_id: Id
    token_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The sha256 of the agent's token, as Postgres keeps it: with it, a row that a restored backup does not have is
    written again and the agent stays. The token is 256 random bits, so its hash opens nothing and leads back nowhere.
    """


class AdoptedSpec(Payload):
    """What the agent is for: answered to the agent that was adopted, and to whoever waits for the adoption."""

    agent_id: str
    scaler: str
    labels: list[str]
    mandatory_labels: list[str] = []
    job_id: str | None = None
    run_id: str | None = None
    role: str | None = None
    warm: bool = False
    """It has no job yet: one comes in the answer to a heartbeat."""


class ReleaseRequest(Payload):
    """`now` tears a busy agent down; without it a busy agent finishes its job first."""

    agent_id: str
    reason: EndReason = EndReason.RELEASED
    by: Text
    now: bool = False


class CondemnRequest(Payload):
    agent_id: str
    reason: EndReason


class GrantedRequest(Payload):
    agent_id: str


class ForgetRequest(Payload):
    agent_id: str
    by: Text


class BindRequest(Payload):
    agent_id: str
    job_id: JobId
    run_id: JobId | None = None
    max_lifetime: Timeout | None = None
    """Of the job. It runs from the binding: what an agent was idle for is not the job's."""


class FollowedEnded(Payload):
    """To the provision whose job a warm agent served: how that agent ended. `agent_id` is the receiver's own."""

    agent_id: str
    served_by: str
    end_reason: EndReason
    result: JobResult = JobResult.UNKNOWN
    teardown: TeardownState = TeardownState.PENDING
    error: str | None = None


class WaitRequest(Payload):
    """The input of `wait_adopted`. Empty, so that fields can be added."""


class StatusRequest(Payload):
    """The input of `status`. Empty, so that fields can be added."""


class TeardownRequest(Payload):
    """The input of TeardownWorkflow: an agent whose compute has not been confirmed gone."""

    agent_id: str
    facts: TeardownFacts
    reason: ScaleDownReason
    end_reason: EndReason


class TeardownOutcome(Payload):
    agent_id: str
    teardown: TeardownState
