"""The judge: reads what a fleet has left behind and says which invariant was broken, by whom, how.

It works on append-only logs: the journal (machines, jobs), the log of rows and the log of admissions (triggers, inside
the very transactions). What stands at the end is looked at as well, and in between whoever runs is counted in /proc.

    I1  live compute is never above a cap
    I2  no compute without a row, no row without a compute: during (row before effect, effect before release), and at
        the end, after quiet, sweeps and two reclaim passes; compute of others is not touched
    I3  a job has one adopted agent at a time, and is done once
    I4  no busy agent is ended, unless somebody has asked for that
    I5  no secret in logs, histories or tables
    I6  every wait ends, with its true reason
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.support.chaos.journal import Event
from tests.support.chaos.rows import RowChange

STARTS = {"created", "late", "began"}
"""Any of these shows that the compute is there: on bare metal nothing but the job says so."""
JOB_ENDS = {"finished", "told", "removed", "excused"}


class Kind(StrEnum):
    """What can be found, in the words of the figures."""

    CAP = "cap breaches"
    ORDER = "effects out of order"
    LEAK = "leaked compute"
    GHOST = "ghost rows"
    FOREIGN = "foreign compute destroyed"
    TWICE = "jobs with two agents"
    BUSY = "busy agents ended"
    SECRET = "secrets in the clear"
    ENDLESS = "provisions without an end"
    UNTRUE = "untrue ends"

    @property
    def invariant(self) -> str:
        return INVARIANTS[self]


INVARIANTS = {
    Kind.CAP: "I1", Kind.ORDER: "I2", Kind.LEAK: "I2", Kind.GHOST: "I2", Kind.FOREIGN: "I2", Kind.TWICE: "I3",
    Kind.BUSY: "I4", Kind.SECRET: "I5", Kind.ENDLESS: "I6", Kind.UNTRUE: "I6",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    sentence: str
    agent_id: str | None = None

    def __str__(self) -> str:
        who = f" ({self.agent_id})" if self.agent_id else ""
        return f"{self.kind.invariant}, {self.kind.value}: {self.sentence}{who}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the client was told that a provision ended: `end` is an end reason or an error type, None: it never was."""

    job_id: str
    agent_id: str
    end: str | None


@dataclass
class Evidence:
    events: list[Event]
    rows: list[RowChange]
    caps: Mapping[str, int]
    """Scaler -> most agents, and `global`."""
    ends: list[Ended] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    """What the judge of admissions says."""
    left_rows: list[str] = field(default_factory=list)
    """Agent ids that hold a slot, or stand in the line, at the end."""
    left_compute: list[str] = field(default_factory=list)
    foreign_left: set[str] = field(default_factory=set)
    """Compute of others that is still there."""
    secrets: list[str] = field(default_factory=list)
    """Where a secret was found: never the secret."""
    seen: list[Violation] = field(default_factory=list)
    """What was seen while it ran."""


KNOWN_ENDS = {
    "completed", "idle", "drained", "released", "operator", "InvalidRequest", "Declined", "Released",
    "NoMatchingScaler", "AuthRefused", "SpawnFailed", "AdoptionTimeout", "AgentLost", "LifetimeExceeded", "Cancelled",
    "Terminated",
}  # fmt: skip


def judge(evidence: Evidence) -> list[Violation]:
    """Every violation, in the order of the invariants. Empty: all of them held."""
    found: list[Violation] = list(evidence.seen)
    for check in (_caps, _order, _at_the_end, _one_agent, _busy, _secrets, _ends):
        found += check(evidence)
    return list(dict.fromkeys(found))


def _caps(evidence: Evidence) -> Iterator[Violation]:
    yield from (Violation(Kind.CAP, sentence) for sentence in evidence.breaches)
    scaler_of = {row.agent_id: row.scaler for row in evidence.rows}
    released: dict[str, int] = {r.agent_id: r.at for r in evidence.rows if r.what == "delete"}
    live: set[str] = set()
    for event in evidence.events:
        agent_id = event.agent_id
        if event.what in STARTS and agent_id in scaler_of:
            # A late effect of a cloud that had said no comes unasked: it is for the reclaim, and counts nowhere.
            if event.what == "late" and released.get(agent_id, event.at) < event.at:
                continue
            live.add(agent_id)
            use = Counter(scaler_of[one] for one in live)
            use["global"] = len(live)
            for scope, cap in evidence.caps.items():
                if use[scope] > cap:
                    yield Violation(
                        Kind.CAP, f"{use[scope]} computes live in {scope}, where {cap} is the cap", agent_id
                    )
        elif event.what == "removed":
            live.discard(agent_id)


def _order(evidence: Evidence) -> Iterator[Violation]:
    """The row is there before the effect, and the effect is gone before the row."""
    inserted: dict[str, int] = {}
    deleted: dict[str, int] = {}
    for row in evidence.rows:
        if row.what == "insert":
            inserted.setdefault(row.agent_id, row.at)
        elif row.what == "delete":
            deleted[row.agent_id] = row.at
    late = {event.agent_id for event in evidence.events if event.what == "late"}
    made: set[str] = set()
    for event in evidence.events:
        agent_id = event.agent_id
        if event.what == "created":
            made.add(agent_id)
            if agent_id not in inserted or inserted[agent_id] > event.at:
                yield Violation(Kind.ORDER, "a compute was created before its row", agent_id)
            if agent_id in deleted and deleted[agent_id] < event.at:
                yield Violation(Kind.ORDER, "a compute was created after its slot was released", agent_id)
        elif event.what == "removed" and agent_id in made - late and deleted.get(agent_id, event.at) < event.at:
            yield Violation(Kind.ORDER, "the slot was released before the compute was gone", agent_id)


def _at_the_end(evidence: Evidence) -> Iterator[Violation]:
    for agent_id in evidence.left_rows:
        yield Violation(Kind.GHOST, "a ghost row: it holds a slot, and everything has ended", agent_id)
    for agent_id in evidence.left_compute:
        yield Violation(Kind.LEAK, "a leaked compute: it lives, and everything has ended", agent_id)
    for event in evidence.events:
        if event.what == "foreign" and event.agent_id not in evidence.foreign_left:
            yield Violation(Kind.FOREIGN, "a compute of another installation was destroyed", event.agent_id)


def _one_agent(evidence: Evidence) -> Iterator[Violation]:
    holder: dict[str, str] = {}
    for row in evidence.rows:
        if row.job_id is None:
            continue
        if row.adopted_by and row.state == "active" and row.what != "delete":
            other = holder.setdefault(row.job_id, row.agent_id)
            if other != row.agent_id:
                yield Violation(
                    Kind.TWICE, f"job {row.job_id} has two adopted agents, the other is {other}", row.agent_id
                )
        elif holder.get(row.job_id) == row.agent_id:
            del holder[row.job_id]
    finished: defaultdict[str, set[str]] = defaultdict(set)
    for event in evidence.events:
        if event.what == "finished":
            finished[event.detail].add(event.agent_id)
    excused = _excused(evidence.events)
    for job_id, agents in finished.items():
        if len(agents - excused) > 1:
            yield Violation(Kind.TWICE, f"job {job_id} was done by {len(agents)} agents: {', '.join(sorted(agents))}")


def _busy(evidence: Evidence) -> Iterator[Violation]:
    """From `began` to `finished` nothing may end an agent that was not excused before."""
    busy: set[str] = set()
    excused: set[str] = set()
    for event in evidence.events:
        agent_id = event.agent_id
        match event.what:
            case "began":
                busy.add(agent_id)
            case "excused":
                excused.add(agent_id)
            case "finished":
                busy.discard(agent_id)
            case "told" | "removed" if agent_id in busy:
                busy.discard(agent_id)
                if agent_id not in excused:
                    what = "was told to stop" if event.what == "told" else "was destroyed"
                    yield Violation(Kind.BUSY, f"a busy agent {what}", agent_id)
    for agent_id in sorted(busy - excused):
        yield Violation(Kind.BUSY, "a busy agent vanished: its job neither finished nor was it told to stop", agent_id)


def _secrets(evidence: Evidence) -> Iterator[Violation]:
    yield from (Violation(Kind.SECRET, f"a secret stands in {where}") for where in evidence.secrets)


def _ends(evidence: Evidence) -> Iterator[Violation]:
    done = {event.agent_id for event in evidence.events if event.what == "finished"}
    done -= {event.agent_id for event in evidence.events if event.what in ("excused", "orphaned")}
    for ended in evidence.ends:
        if ended.end is None:
            yield Violation(Kind.ENDLESS, f"the provision of job {ended.job_id} has no end", ended.agent_id)
        elif ended.end not in KNOWN_ENDS:
            yield Violation(Kind.UNTRUE, f"the provision of job {ended.job_id} ended as {ended.end}", ended.agent_id)
        elif ended.agent_id in done and ended.end != "completed":
            yield Violation(
                Kind.UNTRUE, f"job {ended.job_id} was done, and its provision ended as {ended.end}", ended.agent_id
            )


def _excused(events: Iterable[Event]) -> set[str]:
    return {event.agent_id for event in events if event.what == "excused"}
