"""What the workflows hand to the activities and get back. Pure: the workflows import it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from hatchway.errors import DeclineReason
from hatchway.model import (
    ComputeRef,
    ContainerSpec,
    EndReason,
    FollowedEnded,
    JobResult,
    Payload,
    ProvisionRequest,
    ReleaseRequest,
    ScaleDownReason,
    Sighting,
    TeardownFacts,
    TeardownState,
)


class ReserveInput(Payload):
    """`wait` is false for the last look before a provision gives up its place in the line."""

    agent_id: str
    workflow_id: str
    first_run_id: str
    request: ProvisionRequest
    wait: bool
    wait_left: timedelta
    takes_warm: bool = True
    """False after several warm agents in a row have said no: then a new one."""


class ReserveKind(StrEnum):
    HELD = "held"
    WARM = "warm"
    WAITING = "waiting"
    DECLINED = "declined"
    NO_MATCHING_SCALER = "no-matching-scaler"
    ALREADY_ENDED = "already-ended"


class Binding(Payload):
    """The job of an agent that was warm, and the provision that took it for that job."""

    job_id: str
    run_id: str | None = None
    follower_agent_id: str
    follower_workflow_id: str
    max_lifetime: timedelta | None = None


class Slot(Payload):
    """A held slot: where the agent goes and how long each stage may take. From the config version in force."""

    scaler: str
    labels: list[str]
    mandatory_labels: list[str] = []
    spawn_timeout: timedelta
    adoption_timeout: timedelta
    max_lifetime: timedelta | None = None
    stop_grace: timedelta
    # where an earlier run of this workflow had got to, when it was reset
    host_id: str | None = None
    adopted_by: str | None = None
    registration_id: str | None = None
    closing_for: EndReason | None = None
    bound: Binding | None = None


class WarmAgent(Payload):
    """A warm agent that was taken for a job, and the workflow that runs it."""

    agent_id: str
    workflow_id: str
    first_run_id: str


class ReserveAnswer(Payload):
    kind: ReserveKind
    slot: Slot | None = None
    warm: WarmAgent | None = None
    message: str = ""
    decline: DeclineReason | None = None
    line_position: int | None = None


class AuthInput(Payload):
    agent_id: str
    container: ContainerSpec


class AuthAnswer(Payload):
    """`refused` is a sentence that names the field and the reference, never a value."""

    refused: str | None = None
    image: str | None = None
    registry: str | None = None
    references: list[str] = []


class SpawnInput(Payload):
    agent_id: str
    request: ProvisionRequest
    spawn_timeout: timedelta
    adoption_timeout: timedelta


class AdoptInput(Payload):
    agent_id: str
    instance_id: str
    registration_id: str


class AdoptKind(StrEnum):
    ADOPTED = "adopted"
    NO_SUCH_PROVISION = "no-such-provision"
    TEARING_DOWN = "tearing-down"
    ADOPTED_BY_OTHER = "adopted-by-other"


class AdoptAnswer(Payload):
    kind: AdoptKind
    detail: str = ""


class CloseInput(Payload):
    """`only_unadopted`: this close loses against an adoption (a deadline, a failed spawn)."""

    agent_id: str
    end_reason: EndReason
    only_unadopted: bool = False


class CloseKind(StrEnum):
    CLOSING = "closing"
    ADOPTED = "adopted"
    GONE = "gone"


class CloseAnswer(Payload):
    """`facts` is None when no host was stamped: no effect can have happened, there is nothing to tear down.

    `released`: its slot was given back before. Its compute is not to be destroyed again: the row that said where and
    through whom is gone. `teardown`: how the end of the compute was known then.
    """

    kind: CloseKind
    facts: TeardownFacts | None = None
    adopted_by: str | None = None
    end_reason: EndReason | None = None
    released: bool = False
    teardown: TeardownState | None = None


class Decision(Payload):
    """The outcome as it is written down, by this call or an earlier one.

    `adopted_by`: through which gateway; a workflow that was reset to a point before its adoption knows of none.
    """

    end_reason: EndReason
    result: JobResult
    adopted_by: str | None = None


class TeardownInput(Payload):
    """`final_end`: no fact can change this end any more. Close before, and release after, in the same step."""

    agent_id: str
    facts: TeardownFacts
    reason: ScaleDownReason
    final_end: EndReason | None = None


class TornDown(Payload):
    """`decision`: the slot was released with it, and this is the outcome. `doubt`: what a person should look at."""

    teardown: TeardownState
    decision: Decision | None = None
    doubt: str | None = None


class AgentInput(Payload):
    agent_id: str


class ReleaseInput(Payload):
    """What the workflow takes for the end. A completion that the agent has recorded stands above it.

    `teardown`: how the end of the compute is known.
    """

    agent_id: str
    end_reason: EndReason
    teardown: TeardownState | None = None


class Done(Payload):
    """The answer of a step that has nothing to tell."""


class SpawnAnswer(Payload):
    compute: ComputeRef


class BindInput(Payload):
    """`agent_id` is the provision that has taken the warm agent, for its job."""

    agent_id: str
    warm: WarmAgent
    scaler: str
    job_id: str
    run_id: str | None = None
    max_lifetime: timedelta | None = None


class BindAnswer(Payload):
    """False: the warm agent did not take the job on, and the provision has let go of it."""

    bound: bool


class BindingInput(Payload):
    agent_id: str
    job_id: str


class BindingAnswer(Payload):
    """None: the row does not say that the agent was taken for that job."""

    bound: Binding | None = None


class WithdrawAnswer(Payload):
    """`withdrawn`: nobody has taken the warm agent, and nobody can any more."""

    withdrawn: bool


class ScalerInput(Payload):
    scaler: str


class FollowedInput(Payload):
    agent_id: str
    warm: WarmAgent


class FollowedAnswer(Payload):
    """`ended` as soon as that is known. `closing`: it will be soon."""

    ended: FollowedEnded | None = None
    closing: bool = False


class LetGoInput(Payload):
    """Ask the warm agent of a job to go."""

    warm: WarmAgent
    release: ReleaseRequest


class PoolAnswer(Payload):
    """`again_in`: the head of the line is kept waiting by a warm agent, and this is when to look again."""

    started: int = 0
    released: int = 0
    again_in: timedelta | None = None


class LookInput(Payload):
    """`before`: what earlier passes have seen; it is looked at first."""

    before: list[Sighting] = []
    now: datetime


class Looked(Payload):
    """`listed`: the backends whose answer was whole; what others have was not seen, and may be there all the same."""

    seen: int = 0
    listed: list[str] = []
    sighted: list[Sighting] = []
    more: int = 0
    restored: list[str] = []
    failed: dict[str, str] = {}


class ReclaimInput(Payload):
    agent_id: str
    backend: str


class Reclaimed(Payload):
    """`spared`: why it was not destroyed after all; None: it is gone."""

    spared: str | None = None


class RetireAnswer(Payload):
    """`retired`: nobody polls the host, nothing of it is on record, and its schedule has been deleted."""

    retired: bool
