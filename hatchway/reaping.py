"""Who is torn down without having asked for it: the reaper's verdict on one agent. Pure, and judged top down.

    closing     nobody is at it, or it takes too long ─────────────────────► its own reason, at once
    completed   not acted on, and spared by the rest, or its workflow gone ─► told again, or ended as completed
    registered  heard of within the agent timeout ─────────────────────────► spared
    anybody     of whom nobody knows the owner, the gateway or the workflow ► spared, until an operator forgets it
    registered  no gateway was there for long enough to hear it ───────────► spared: we are blind
                silent for the flap grace, and nobody is left who waits ───► heartbeat-timeout
                …, and its gateway too, while its way led to another one ──► heartbeat-timeout
                silent for the stranded timeout ───────────────────────────► heartbeat-timeout
    others      their workflow is gone for the flap grace, or did not act
                on its deadline for so long ───────────────────────────────► adoption-timeout
    the rest ──────────────────────────────────────────────────────────────► spared

Every fact comes from one read of the database and is judged by its clock. Silence is the age of the last heartbeat: a
restart of the reaper resets nothing. What could not be found out speaks for the agent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from hatchway.model import EndReason

if TYPE_CHECKING:
    from hatchway.config.schema import Reaper


@dataclass(frozen=True, slots=True)
class Windows:
    """After how long a silence means something. From the configuration in force."""

    agent_timeout: timedelta = timedelta(seconds=90)
    instance_timeout: timedelta = timedelta(seconds=45)
    flap_grace: timedelta = timedelta(seconds=120)
    stranded_timeout: timedelta = timedelta(minutes=30)
    reattempt: timedelta = timedelta(minutes=10)

    @classmethod
    def of(cls, reaper: Reaper) -> Windows:
        return cls(
            agent_timeout=timedelta(seconds=reaper.agent_timeout_seconds),
            instance_timeout=timedelta(seconds=reaper.instance_timeout_seconds),
            flap_grace=timedelta(seconds=reaper.flap_grace_seconds),
            stranded_timeout=timedelta(seconds=reaper.stranded_timeout_seconds),
            reattempt=timedelta(seconds=reaper.reattempt_seconds),
        )


@dataclass(frozen=True, slots=True)
class Workflow:
    """What Temporal says of the workflow that an agent's row names."""

    open: bool
    closed_at: datetime | None = None
    """It closed then, or before. None: it is open, or nobody remembers."""
    acting: bool = False
    """An activity of it is under way, which the server ends in time: it is not stuck."""
    tearing_down: bool = False
    """It says of itself that it tears its agent down."""
    run_id: str | None = None
    """Of the open run: what a signal is pinned to."""


NEVER_WAS = Workflow(open=False)


@dataclass(frozen=True, slots=True)
class Way:
    """How an agent comes to a gateway. The same URL may lead elsewhere, or nowhere, from another host or network."""

    scaler: str
    host_id: str
    orchestrator_url: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of one agent that holds a slot, as of one moment."""

    agent_id: str
    spawned_at: datetime
    state_version: int = 1
    workflow_id: str | None = None
    first_run_id: str | None = None
    owner: str | None = None
    adopted_by: str | None = None
    adopted_at: datetime | None = None
    last_seen_at: datetime | None = None
    """Its last heartbeat."""
    gateway_seen_at: datetime | None = None
    """The last heartbeat of the gateway that heard it last. None: that one is not known any more."""
    gateway_since: datetime | None = None
    """Since when a gateway that is alive has been so, of all of them the longest. None: none is alive."""
    way: Way | None = None
    """Looked for only where its own gateway is silent. None: its host, or the URL that it was given, is not known."""
    reached_since: datetime | None = None
    """Since when an agent that came the same way has been heard of without a gap, and still is, at a gateway that is
    alive. Looked for where its way is known. None: nobody knows of one."""
    deadline_at: datetime | None = None
    closing_at: datetime | None = None
    end_reason: EndReason | None = None
    condemned: bool = False
    """A reaper has set it closing, and its workflow hears of that by a signal only."""
    completed: bool = False
    """It has committed what came of its job."""
    workflow: Workflow | None = None
    """None: not asked, or no answer."""
    teardown_open: bool | None = None
    """Whether its TeardownWorkflow runs. None: not asked, or no answer."""

    @property
    def adopted(self) -> bool:
        return self.adopted_by is not None

    @property
    def closing(self) -> bool:
        return self.closing_at is not None

    def absence(self, now: datetime) -> timedelta | None:
        """For how long nobody has heard of it. None: it has not registered yet."""
        if not self.adopted:
            return None
        return now - (self.last_seen_at or self.adopted_at or self.spawned_at)


class Action(StrEnum):
    SPARE = "spares"
    TELL_AGAIN = "tells again"
    TEAR_DOWN = "tears down"
    CONDEMN = "condemns"


class Rule(StrEnum):
    """The row of the table that decided, in words."""

    COMPLETED = "it has committed its completion, and its workflow has not acted on that"
    UNATTENDED = "closing, and neither its workflow nor a TeardownWorkflow is at it"
    UNHEARD = "condemned, and its workflow has not heard of that"
    OVERTIME = "closing for longer than the re-attempt window, and no TeardownWorkflow is at it"
    ATTENDED = "closing, and somebody is at it"
    SEEN = "seen within the agent timeout"
    UNKNOWN = "owner, gateway and workflow are all unknown: only `hatchway forget` ends it"
    BLIND = "no gateway has been alive for the flap grace: nobody could have heard it"
    LEFT = "silent for the flap grace, and its workflow is gone"
    DESERTED = "silent for the flap grace, as is its gateway, and another one was there to go to"
    NOWHERE = (
        "silent, as is its gateway; no other one has heard agents of its scaler, host and orchestratorUrl for the flap "
        "grace: it may have nowhere to go, and has until the stranded timeout"
    )
    STRANDED = "silent for the stranded timeout"
    ABANDONED = "never registered, and its workflow is gone for the flap grace"
    OVERDUE = "never registered, and its workflow has not acted on its deadline for the flap grace"
    SPARED = "nothing speaks against it"

    @property
    def action(self) -> Action:
        match self:
            case Rule.COMPLETED | Rule.UNHEARD:
                return Action.TELL_AGAIN
            case Rule.UNATTENDED | Rule.OVERTIME:
                return Action.TEAR_DOWN
            case Rule.LEFT | Rule.DESERTED | Rule.STRANDED | Rule.ABANDONED | Rule.OVERDUE:
                return Action.CONDEMN
            case _:
                return Action.SPARE


@dataclass(frozen=True, slots=True)
class Judgement:
    rule: Rule
    end: EndReason | None = None
    """None: it is spared."""


def verdict(candidate: Candidate, windows: Windows, now: datetime) -> EndReason | None:
    """Why the agent is to be torn down. None: it is spared."""
    return judge(candidate, windows, now).end


def judge(candidate: Candidate, windows: Windows, now: datetime) -> Judgement:
    """The verdict, and which rule gave it. `now` is the database's, of the read that the candidate is from."""
    judgement = _judge(candidate, windows, now)
    workflow = candidate.workflow
    # With no workflow to weigh the two, a completion outranks the silence of an agent that has nothing left to say.
    unweighed = judgement.end is None or (workflow is not None and not workflow.open)
    if candidate.completed and not candidate.closing and unweighed:
        return Judgement(Rule.COMPLETED)
    return judgement


def _judge(candidate: Candidate, windows: Windows, now: datetime) -> Judgement:
    if candidate.closing_at is not None:
        return _judge_closing(candidate, candidate.closing_at, windows, now)
    absence = candidate.absence(now)
    if absence is not None and absence <= windows.agent_timeout:
        return Judgement(Rule.SEEN)
    if candidate.owner is None and candidate.adopted_by is None and candidate.workflow_id is None:
        return Judgement(Rule.UNKNOWN)
    if absence is not None:
        return _judge_registered(candidate, absence, windows, now)
    return _judge_unregistered(candidate, windows, now)


def _judge_closing(candidate: Candidate, since: datetime, windows: Windows, now: datetime) -> Judgement:
    by_default = EndReason.HEARTBEAT_TIMEOUT if candidate.adopted else EndReason.ADOPTION_TIMEOUT
    end = candidate.end_reason or by_default
    workflow = candidate.workflow
    if candidate.teardown_open is False:
        if workflow is not None and not workflow.open:
            return Judgement(Rule.UNATTENDED, end)
        # A first round may take as long as its agent's grace for stopping, and ends by itself.
        if now - since >= windows.reattempt and not (workflow and workflow.acting):
            return Judgement(Rule.OVERTIME, end)
        if candidate.condemned and workflow is not None and not workflow.tearing_down:
            return Judgement(Rule.UNHEARD, end)
    return Judgement(Rule.ATTENDED)


def _judge_registered(candidate: Candidate, absence: timedelta, windows: Windows, now: datetime) -> Judgement:
    if absence < windows.flap_grace:
        return Judgement(Rule.SPARED)
    if candidate.gateway_since is None or now - candidate.gateway_since < windows.flap_grace:
        return Judgement(Rule.BLIND)
    if candidate.workflow is not None and not candidate.workflow.open:
        return Judgement(Rule.LEFT, EndReason.HEARTBEAT_TIMEOUT)
    deserted = has_lost_its_gateway(candidate, windows, now)
    if deserted and candidate.reached_since is not None and now - candidate.reached_since >= windows.flap_grace:
        return Judgement(Rule.DESERTED, EndReason.HEARTBEAT_TIMEOUT)
    if absence >= windows.stranded_timeout:
        return Judgement(Rule.STRANDED, EndReason.HEARTBEAT_TIMEOUT)
    return Judgement(Rule.NOWHERE if deserted else Rule.SPARED)


def has_lost_its_gateway(candidate: Candidate, windows: Windows, now: datetime) -> bool:
    """Whether it is silent for the flap grace, and the gateway that heard it last for so long that it does not live.

    A gateway that is alive is another one then.
    """
    absence = candidate.absence(now)
    if candidate.closing or absence is None or absence < windows.flap_grace:
        return False
    silent = max(windows.flap_grace, windows.instance_timeout)
    return candidate.gateway_seen_at is None or now - candidate.gateway_seen_at >= silent


def _judge_unregistered(candidate: Candidate, windows: Windows, now: datetime) -> Judgement:
    workflow = candidate.workflow
    if workflow is None:
        return Judgement(Rule.SPARED)
    if not workflow.open:
        # One that nobody remembers may have closed a moment ago: its row's deadline is waited for, if it has one.
        gone_since = workflow.closed_at or candidate.deadline_at or candidate.spawned_at
        if now - gone_since >= windows.flap_grace:
            return Judgement(Rule.ABANDONED, EndReason.ADOPTION_TIMEOUT)
    elif candidate.deadline_at is not None and now - candidate.deadline_at > windows.flap_grace:
        # A spawn that waits for its turn may be late by the row, and is in time by the server, which ends it.
        return Judgement(Rule.SPARED) if workflow.acting else Judgement(Rule.OVERDUE, EndReason.ADOPTION_TIMEOUT)
    return Judgement(Rule.SPARED)


def depends_on_workflow(candidate: Candidate, windows: Windows, now: datetime) -> bool:
    """Whether Temporal could say anything that changes the verdict. Asking costs a call for each agent."""
    if candidate.closing or candidate.completed:
        return True
    long_gone = Workflow(open=False, closed_at=datetime.min.replace(tzinfo=UTC))
    answers = (replace(candidate, workflow=found) for found in (long_gone, NEVER_WAS, Workflow(open=True)))
    without = verdict(candidate, windows, now)
    return any(verdict(answer, windows, now) is not without for answer in answers)


def silence_needed(rule: Rule, windows: Windows) -> timedelta:
    """For how long a registered agent must still be silent when it is condemned by this rule."""
    least = windows.stranded_timeout if rule is Rule.STRANDED else windows.flap_grace
    return max(least, windows.agent_timeout)
