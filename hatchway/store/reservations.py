"""What a reservation asks for, and every answer that it can get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from hatchway.model import COUNTED_AHEAD
from hatchway.store.rows import OutcomeRow, SpawnRow, Wake, moment, wakes


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scaler and label set that would do, and the shape that the agent would have there."""

    scaler: str
    mcpu: int
    """Thousandths of a CPU; 0 where the request names none."""
    mem_bytes: int
    label_set: list[str]
    mandatory_labels: list[str]
    backend_type: str
    provisioning_targets: list[str]
    roles: list[str]
    takes_warm: str | None = None
    """The key of warm agents that would serve this job as well as a new one (`hatchway.warming`). None: none does."""
    made_warm: str | None = None
    """The key of the warm agent that this is: it is made ahead of jobs."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A slot, please: on the first candidate that has room, best first."""

    agent_id: str
    workflow_id: str
    workflow_first_run_id: str
    job_id: str | None
    run_id: str | None
    priority: int
    """1 (first) to 5."""
    wait: bool
    candidates: list[Candidate]
    config_version: int
    """Of the plan. Another one than before, called again while waiting, replaces the candidates at the same place."""
    owner_instance_id: str
    reserved_for: timedelta
    """The row's deadline from the moment it is held: what the spawn queue and one spawn may take."""
    wait_timeout: timedelta
    warm_target: int | None = None
    """Of a warm pool's fill: how many its pool may have. It has one candidate, goes behind everybody, never waits."""


class BoundKind(StrEnum):
    """What stands between a candidate and a slot."""

    FULL = "full"
    LINE = "line"
    NEVER_FITS = "never-fits"
    DRAINING = "draining"
    RETIRED = "retired"
    BACKING_OFF = "backing-off"


@dataclass(frozen=True, slots=True)
class Bound:
    """What bound one candidate. `str()` is a sentence for people."""

    kind: BoundKind
    scope: str
    """`global`, `pool:<name>` or `scaler:<name>`: the narrowest that bound."""
    what: str | None = None
    """`agents`, `mcpu` or `mem_bytes`."""
    used: int | None = None
    cap: int | None = None
    want: int | None = None
    until: datetime | None = None
    code: str | None = None
    message: str | None = None
    """Of the last failure, while backing off."""

    def __str__(self) -> str:
        match self.kind:
            case BoundKind.FULL:
                return f"{self.scope} is full: {self.used} of {self.cap} {self.what} in use, {self.want} wanted"
            case BoundKind.LINE:
                more = " or more" if (self.used or 0) >= COUNTED_AHEAD else ""
                return f"{self.scope}: {self.used}{more} ahead in the line"
            case BoundKind.NEVER_FITS:
                return f"{self.scope} can never hold it: {self.want} {self.what} wanted, the cap is {self.cap}"
            case BoundKind.DRAINING:
                return f"{self.scope} is draining"
            case BoundKind.RETIRED:
                return f"{self.scope} is not in the current config"
            case BoundKind.BACKING_OFF:
                until = "" if self.until is None else f" until {self.until:%H:%M:%S} UTC"
                last = f", last: {self.code}: {self.message}" if self.code else ""
                return f"{self.scope} backs off after failures{until}{last}"

    @classmethod
    def from_json(cls, bound: Mapping[str, Any]) -> Bound:
        return cls(
            BoundKind(bound["kind"]),
            bound["scope"],
            bound.get("what"),
            bound.get("used"),
            bound.get("cap"),
            bound.get("want"),
            moment(bound.get("until")),
            bound.get("code"),
            bound.get("message"),
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    wake: list[Wake] = field(default_factory=list, kw_only=True)
    """Workflows that the caller must signal `granted`: others that got a slot on the way."""


@dataclass(frozen=True, slots=True)
class Held(_Answer):
    """The agent has a slot. `resumed`: it had one before this call, and the row says how far it got.

    `older`: agents of the same job that are still being torn down.
    """

    row: SpawnRow
    resumed: bool
    older: list[SpawnRow]


@dataclass(frozen=True, slots=True)
class Warm(_Answer):
    """A warm agent is taken for the job, whose row this is. Its workflow has to take the job on: until then it can say
    no, and the taker can give it back. `older` as above.
    """

    row: SpawnRow
    older: list[SpawnRow]


@dataclass(frozen=True, slots=True)
class PoolRefused(_Answer):
    """A warm pool gets no agent more now: it is full, jobs wait, or it was asked for under an old configuration."""

    why: str


@dataclass(frozen=True, slots=True)
class Waiting(_Answer):
    """The agent stands in the line, 1 is next. `bound`: a sentence for each candidate."""

    position: int
    bound: list[str]
    bounds: list[Bound]

    @property
    def ahead(self) -> int:
        return self.position - 1


@dataclass(frozen=True, slots=True)
class _Refused(_Answer):
    bound: list[str]
    bounds: list[Bound]


@dataclass(frozen=True, slots=True)
class AtCapacity(_Refused):
    """No room now, and the request does not wait."""


@dataclass(frozen=True, slots=True)
class NeverFits(_Refused):
    """No candidate could hold this shape, were it empty: waiting cannot help, so nobody waits."""


@dataclass(frozen=True, slots=True)
class BackingOff(_Refused):
    """Every candidate backs off after failures (or takes nobody for another reason)."""

    until: datetime | None
    """When the first of them tries again."""


@dataclass(frozen=True, slots=True)
class Draining(_Refused):
    """Every candidate is draining, or has left the config."""


@dataclass(frozen=True, slots=True)
class JobHasAgent(_Answer):
    """Another agent has this job: a live row, or a place in the line (`row` is None). A closing row does not count."""

    agent_id: str
    workflow_id: str | None
    first_run_id: str | None
    row: SpawnRow | None

    @property
    def adopted(self) -> bool:
        return self.row is not None and self.row.adopted

    @property
    def closing(self) -> bool:
        return self.row is not None and self.row.closing

    @property
    def host_id(self) -> str | None:
        return None if self.row is None else self.row.host_id


@dataclass(frozen=True, slots=True)
class JobServed(_Answer):
    """An adopted agent has completed this job, and its outcome is still kept."""

    outcome: OutcomeRow


@dataclass(frozen=True, slots=True)
class AlreadyEnded(_Answer):
    """This agent was released: it gets no second slot."""

    end_reason: str | None


ReserveAnswer = (
    Held | Warm | Waiting | AtCapacity | NeverFits | BackingOff | Draining | PoolRefused
    | JobHasAgent | JobServed | AlreadyEnded
)  # fmt: skip


def parse_answer(answer: Mapping[str, Any]) -> ReserveAnswer:
    """What `hatchway_reserve` said."""
    wake = wakes(answer.get("wake"))
    match answer["answer"]:
        case "held":
            older = [SpawnRow.from_json(row) for row in answer["older"] or ()]
            return Held(SpawnRow.from_json(answer["row"]), answer["resumed"], older, wake=wake)
        case "warm":
            older = [SpawnRow.from_json(row) for row in answer["older"] or ()]
            return Warm(SpawnRow.from_json(answer["row"]), older, wake=wake)
        case "pool-refused":
            return PoolRefused(answer["why"], wake=wake)
        case "already-ended":
            return AlreadyEnded(answer["end_reason"], wake=wake)
        case "job-served":
            return JobServed(OutcomeRow.from_json(answer["outcome"]), wake=wake)
        case "job-has-agent":
            row = None if answer["row"] is None else SpawnRow.from_json(answer["row"])
            return JobHasAgent(
                answer["agent_id"], answer["workflow_id"], answer["workflow_first_run_id"], row, wake=wake
            )
    bounds = [Bound.from_json(b) for b in answer["bound"]]
    if answer["answer"] == "waiting":
        return Waiting(answer["position"], [str(b) for b in bounds], bounds, wake=wake)
    return _refusal(bounds, wake)


def _refusal(bounds: Sequence[Bound], wake: list[Wake]) -> AtCapacity | NeverFits | BackingOff | Draining:
    """One name for what several candidates met: at capacity as soon as one of them only lacks room."""
    kinds = {b.kind for b in bounds}
    sentences = [str(b) for b in bounds]
    if kinds & {BoundKind.FULL, BoundKind.LINE}:
        return AtCapacity(sentences, list(bounds), wake=wake)
    if BoundKind.BACKING_OFF in kinds:
        until = min(b.until for b in bounds if b.until is not None)
        return BackingOff(sentences, list(bounds), until, wake=wake)
    if kinds & {BoundKind.DRAINING, BoundKind.RETIRED}:
        return Draining(sentences, list(bounds), wake=wake)
    return NeverFits(sentences, list(bounds), wake=wake)
