"""Payload models of workflows, updates, signals and queries.

Every model refuses unknown fields and never quotes its input in an error: an input can hold what must not reach a log.
Durations come in as seconds or ISO 8601 and go out as seconds. Field names are snake_case, except inside `container`,
which keeps the camelCase of the job definitions that it is copied from.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from hatchway.errors import InvalidReference
from hatchway.quantities import parse_cpus, parse_memory
from hatchway.registry.reference import parse_reference

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:@-]{1,200}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Labels = Annotated[list[Label], Field(max_length=100)]
"""More than any label set has: a refusal names them all, and must stay a sentence."""
SecretRef = Annotated[str, StringConstraints(pattern=r"^[^:\s]+:[^\s]+$", max_length=500)]
Text = Annotated[str, StringConstraints(max_length=500)]
Timeout = Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=7))]


class Payload(BaseModel):
    """Base of everything that crosses a Temporal boundary."""

    model_config = ConfigDict(
        extra="forbid", hide_input_in_errors=True, ser_json_timedelta="float", frozen=True, use_enum_values=False
    )


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


class EnvSecret(Payload):
    """An environment value that is resolved where the agent is spawned."""

    secret: SecretRef


EnvValue = str | EnvSecret

ROTATE = "secrets are passed by reference only; rotate the value that was sent here: it already lies in history"


class ContainerAuth(Payload):
    """Registry credentials of a job, by reference. `*Secret` is `<context>:<secret-name>`."""

    registry: Text | None = None
    username: Text | None = None
    usernameSecret: SecretRef | None = None  # noqa: N815 - the job definition's own spelling
    tokenSecret: SecretRef | None = None  # noqa: N815

    @model_validator(mode="before")
    @classmethod
    def _refuse_material(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for field in ("usernameValue", "tokenValue"):
                if field in data:
                    raise ValueError(f"{field} is refused: {ROTATE}")
        return data


class ContainerSpec(Payload):
    """The container that a job wants: an image, or a dockerfile that its agent builds."""

    image: Text | None = None
    dockerfile: Text | None = None
    context: Text | None = None
    target: Text | None = None
    args: dict[str, str] | None = None
    env: dict[str, EnvValue] = {}
    auth: ContainerAuth | None = None

    @field_validator("image")
    @classmethod
    def _image_parses(cls, image: str | None) -> str | None:
        if image is not None:
            try:
                parse_reference(image)
            except InvalidReference as e:
                raise ValueError(str(e)) from None
        return image

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.image is None) == (self.dockerfile is None):
            raise ValueError("needs either image or dockerfile, and not both")
        if self.image is not None and (self.context or self.target or self.args):
            raise ValueError("context, target and args belong to a dockerfile, not to an image")
        if self.dockerfile is not None and self.auth is not None and not self.auth.registry:
            raise ValueError(
                "auth.registry is required with a dockerfile: its FROM does not say which host to log in to"
            )
        return self


def _amount_of_cpus(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        parse_cpus(amount)
    return amount


def _amount_of_memory(amount: Any) -> Any:
    if isinstance(amount, int | float | str):
        parse_memory(amount)
    return amount


class ResourceAmounts(Payload):
    """CPUs as a number (0.5 is half a core) or `500m`; memory as bytes or `512m`, `2Gi` (1024-based)."""

    cpus: Annotated[float | str | None, BeforeValidator(_amount_of_cpus)] = None
    memory: Annotated[int | str | None, BeforeValidator(_amount_of_memory)] = None


class ResourceRequest(Payload):
    """What is reserved, and what the compute may use at most. `{cpus, memory}` alone means both."""

    requests: ResourceAmounts | None = None
    limits: ResourceAmounts | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        if isinstance(data, dict) and data and set(data) <= {"cpus", "memory"}:
            return {"limits": data}
        return data

    @model_validator(mode="after")
    def _requests_within_limits(self) -> Self:
        if self.requests is None or self.limits is None:
            return self
        for kind, parse in (("cpus", parse_cpus), ("memory", parse_memory)):
            request, limit = getattr(self.requests, kind), getattr(self.limits, kind)
            if request is not None and limit is not None and parse(request) > parse(limit):
                raise ValueError(f"requests.{kind} is more than limits.{kind}: nobody could use what is reserved")
        return self


class ProvisionRequest(Payload):
    """The input of ProvisionWorkflow: who needs an agent, of what kind, and for how long they will wait."""

    labels: Labels
    exclude_labels: Labels = []
    job_id: Id | None = None
    run_id: Id | None = None
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
    job_id: Id
    run_id: Id | None = None
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


class WarmPoolRequest(Payload):
    """The input of WarmPoolWorkflow, and of its one signal."""

    scaler: str


class WarmPoolOutcome(Payload):
    """What was done for the pool."""

    started: int = 0
    released: int = 0


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


class ReclaimRequest(Payload):
    """The input of ReclaimWorkflow: one pass over the compute of one host."""

    host_id: str


class Sighting(Payload):
    """A compute of ours that nobody answers for: no row, no open workflow. `backend`: the kind that listed it."""

    agent_id: str
    backend: str
    since: datetime
    """When the first of the passes in a row began that saw it so."""


class ReclaimOutcome(Payload):
    """What one pass has seen and done. The next pass reads `sighted` out of it."""

    seen: int = 0
    """Computes that bear this installation's id."""
    sighted: list[Sighting] = []
    """Those that the next pass destroys, if it sees them so again."""
    more: int = 0
    """Computes without a row that were left for a later pass."""
    reclaimed: list[str] = []
    restored: list[str] = []
    """Agents whose open workflow got its row back."""
    failed: dict[str, str] = {}
    """What did not get through, by backend or agent, and why."""
    retired: bool = False
    """The host is gone and nothing of it is on record: its schedule has been deleted."""


class SweepRequest(Payload):
    """The input of SweepWorkflow and of each of its steps. Empty, so that fields can be added."""


class PurgeKind(StrEnum):
    """What is deleted once it is spent."""

    CLAIMS = "claims"
    TOKENS = "tokens"
    PRESENCE = "presence"
    OUTCOMES = "outcomes"
    JOBS = "jobs"
    INSTANCES = "instances"


class PurgeRequest(Payload):
    """The input of PurgeWorkflow. Empty, so that fields can be added."""


class PurgeInput(Payload):
    """The input of each of its steps."""

    kind: PurgeKind


class SweptStep(Payload):
    """What one step of a sweep or a purge has done: a word for each kind of thing, and how many. `error`: it failed."""

    done: dict[str, int] = {}
    error: str | None = None


class SweepOutcome(Payload):
    """What each step has done, by its name."""

    steps: dict[str, SweptStep]

    @property
    def failed(self) -> dict[str, str]:
        """The steps that did not get through, and why."""
        return {name: step.error for name, step in self.steps.items() if step.error is not None}
