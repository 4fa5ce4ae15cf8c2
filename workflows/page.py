"""The page of a provision in the Temporal UI: what it is doing, since when, for whom it waits, and what one can do.

At most 2 kB. Text that comes from elsewhere (errors, an agent's output, an operator's name) can neither become Markdown
nor push out what one can do: it is fenced, and cut to the room that is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from textwrap import TextWrapper

from hatchway.errors import ErrorType
from hatchway.model import COUNTED_AHEAD, ProvisionState, ProvisionStatus, ReclaimOutcome, SweepOutcome, TeardownRequest

LIMIT = 2000
"""Bytes, as are the other limits."""
FOREIGN_LIMIT = 900
INLINE_LIMIT = 250
CODE_LIMIT = 120
LINE = 60
"""Characters of a line in a code block."""

NAMED = 5
"""How many agents of one kind a page names."""

NEXT_STEP: Mapping[ProvisionState, str] = {
    ProvisionState.RESERVING: "Nothing. If it stays here, Postgres does not answer: see the pending activity.",
    ProvisionState.QUEUED: "Wait, raise the cap that is named here, or `hatchway cancel AGENT`.",
    ProvisionState.RESOLVING: "Nothing. If it stays here, the secret's provider does not answer.",
    ProvisionState.SPAWNING: (
        "See the pending spawn activity: its attempts and its heartbeat. If no worker takes it, start one that reaches "
        "this scaler's backend. `hatchway cancel AGENT` ends it."
    ),
    ProvisionState.AWAITING_ADOPTION: "Read what the agent printed: `hatchway logs AGENT`. Can it reach the gateway?",
    ProvisionState.ACTIVE: "Nothing. `hatchway release AGENT` lets the job finish first; with `--now` it does not.",
    ProvisionState.TEARING_DOWN: (
        "Start a worker on that host, or repair its engine. If the machine is gone for good: `hatchway forget AGENT`."
    ),
    ProvisionState.CLOSED: "Nothing: it has ended.",
}

DATABASE = "the database, which does not answer"
DATABASE_STEP = (
    "Bring the database back: this goes on by itself then. Do not `hatchway forget` it: maybe nobody has been asked to "
    "end the machine yet, and it would stay."
)

AFTER_FAILURE: Mapping[str, str] = {
    ErrorType.INVALID_REQUEST: "Correct the request, and start it again.",
    ErrorType.NO_MATCHING_SCALER: "Correct the job's labels, or add a label set that has them; then offer it again.",
    ErrorType.DECLINED: "Offer the job again later, or raise the cap that is named here.",
    ErrorType.AUTH_REFUSED: "Correct the reference, or the secret context that it names; then offer the job again.",
    ErrorType.SPAWN_FAILED: "Repair what the error names, then offer the job again.",
    ErrorType.ADOPTION_TIMEOUT: "See why the agent did not reach its gateway, then offer the job again.",
}

_PLAIN = re.compile(r"[\w \-.,:;/()%']*")
"""Words that mean nothing in Markdown. A link would have `://` or `www.`, emphasis an underscore at a word's edge."""


def next_step(state: ProvisionState, agent_id: str, waiting_for: str = "") -> str:
    """What an operator can do, with commands to copy."""
    return DATABASE_STEP if waiting_for == DATABASE else NEXT_STEP[state].replace("AGENT", agent_id)


def fenced(text: str, limit: int = FOREIGN_LIMIT) -> str:
    """Foreign text as a code block that it cannot break out of: its beginning, and its end where it is too long."""
    visible = "".join(c if c == "\n" or c.isprintable() else " " for c in text.replace("`", "'"))
    return "```text\n" + _middle_cut(_wrapped(visible.strip("\n")) or "it said nothing", limit) + "\n```"


def _wrapped(text: str) -> str:
    """The UI shows the page in half a window and breaks no line of a code block: the rest would be off to the right."""
    breaking = TextWrapper(LINE, break_long_words=False, break_on_hyphens=False)
    return "\n".join(part for line in text.split("\n") for part in breaking.wrap(line) or [""])


def place(position: int) -> str:
    """A place in the line, for people."""
    return str(position) if position <= COUNTED_AHEAD else f"behind {COUNTED_AHEAD:,} or more"


def inline(text: str, limit: int = INLINE_LIMIT) -> str:
    """Text on one line: as it is when nothing in it could be Markdown, else as code."""
    line = _cut(" ".join(text.split()), limit)
    innocent = _PLAIN.fullmatch(line) and "_" not in line and "://" not in line and "www." not in line
    return line if innocent else code(line, limit)


def code(text: str, limit: int = CODE_LIMIT) -> str:
    """Text as inline code that it cannot break out of."""
    visible = "".join(c if c.isprintable() else " " for c in text.replace("`", "'"))
    return f"`{_cut(visible, limit) or ' '}`"


def render(status: ProvisionStatus) -> str:
    """A provision's page as Markdown."""
    lines = [
        f"### {status.state.value}",
        "",
        f"- **since** {_moment(status.since)}",
        f"- **waits for** {inline(status.waiting_for)}",
        _agent(status),
    ]
    if status.deadline_at:
        lines.append(f"- **deadline** {_moment(status.deadline_at)}")
    if status.line_position is not None:
        lines.append(f"- **place in the line** {place(status.line_position)}")
    if status.compute:
        lines.append(f"- **compute** {code(status.compute.backend)} on host {code(status.compute.host_id)}")
    if status.adopted_by:
        lines.append(f"- **adopted through** {code(status.adopted_by)}")
    return _page(lines, status.last_error, status.next_step)


def render_end(status: ProvisionStatus, ended_at: datetime, end: str, error: str | None, todo: str | None) -> str:
    """The page of a provision that has ended; `end` says how in a few words, `todo` what is left to do."""
    lines = [f"### {end}", "", f"- **since** {_moment(ended_at)}", "- **waits for** nothing", _agent(status)]
    return _page(lines, error, todo or NEXT_STEP[ProvisionState.CLOSED])


HOST_CONFIRMS = "a worker on that host to confirm that the compute is gone"


def render_teardown(
    request: TeardownRequest, since: datetime, error: str | None, tried_at: datetime, waits_for: str = HOST_CONFIRMS
) -> str:
    """The page of a teardown that goes on until somebody confirms that the compute is gone."""
    facts = request.facts
    lines = [
        f"### {ProvisionState.TEARING_DOWN.value}",
        "",
        f"- **since** {_moment(since)}",
        f"- **waits for** {waits_for}; the slot is held until then",
        f"- **agent** {code(request.agent_id)}, {code(facts.backend_type)} on host {code(facts.host_id)}",
        f"- **reason of the end** {request.end_reason.value}",
    ]
    if error is not None:
        lines.append(f"- **last failed {'call' if waits_for == DATABASE else 'round'}** {_moment(tried_at)}")
    return _page(lines, error, next_step(ProvisionState.TEARING_DOWN, request.agent_id, waits_for))


def render_torn_down(agent_id: str, at: datetime, how: str, doubt: str | None = None) -> str:
    """The page of a teardown that has ended; `how` says who answers for it, `doubt` what a person should look at."""
    lines = ["### closed", "", f"- **since** {_moment(at)}", f"- **agent** {code(agent_id)}", f"- **compute** {how}"]
    todo = f"{inline(doubt, FOREIGN_LIMIT)}. Its slot is free." if doubt else "Nothing: its slot is free."
    return _page(lines, None, todo)


def render_sweep(outcome: SweepOutcome, running: Collection[str], now: datetime) -> str:
    """The page of one sweep: what each step has done, and what has not got through."""
    return _steps(outcome, running, now, "sweeping", "swept")


def render_purge(outcome: SweepOutcome, running: Collection[str], now: datetime) -> str:
    """The page of one purge: how much of each kind is deleted, and what has not got through."""
    return _steps(outcome, running, now, "purging", "purged")


def _steps(outcome: SweepOutcome, running: Collection[str], now: datetime, doing: str, done: str) -> str:
    title = doing if running else f"{done}, with failures" if outcome.failed else done
    lines = [f"### {title}", "", f"- **since** {_moment(now)}"]
    for name, step in outcome.steps.items():
        if name in running:
            said = "under way"
        elif step.error is not None:
            said = "failed"
        else:
            counts = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in step.done.items() if number)
            said = counts or "nothing to do"
        lines.append(f"- **{name}** {inline(said)}")
    error = "\n".join(f"{name}: {words}" for name, words in outcome.failed.items()) or None
    todo = "Repair what the error names; the next pass tries again." if error else "Nothing."
    return _page(lines, error, todo)


def render_reclaim(title: str, host_id: str, outcome: ReclaimOutcome, now: datetime) -> str:
    """The page of one pass over a host's compute."""
    lines = [f"### {title}", "", f"- **since** {_moment(now)}", f"- **host** {code(host_id)}"]
    lines.append(f"- **ours** {outcome.seen}")
    for what, agents in (
        ("nobody answers for", [sighting.agent_id for sighting in outcome.sighted]),
        ("destroyed", outcome.reclaimed),
        ("row written again", outcome.restored),
    ):
        if agents:
            named = ", ".join(code(agent_id) for agent_id in agents[:NAMED])
            lines.append(f"- **{what}** {len(agents)}: {named}" + (", …" if len(agents) > NAMED else ""))
    if outcome.more:
        lines.append(f"- **left for a later pass** {outcome.more}")
    error = "\n".join(f"{what}: {why}" for what, why in sorted(outcome.failed.items())) or None
    todo = "Nothing: what nobody answers for is destroyed when the next pass sees it so again."
    return _page(lines, error, "Repair what the error names; the next pass tries again." if error else todo)


def _page(lines: list[str], error: str | None, todo: str) -> str:
    head, foot = "\n".join(lines), f"\n\n**What you can do:** {todo}"
    if error is None:
        return head + foot
    title = "\n- **last error**\n\n"
    room = LIMIT - sum(len(part.encode()) for part in (head, title, fenced(""), foot))
    return head + title + fenced(error, min(room, FOREIGN_LIMIT)) + foot


def _agent(status: ProvisionStatus) -> str:
    return f"- **agent** {code(status.agent_id)}" + (f" on scaler {code(status.scaler)}" if status.scaler else "")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _cut(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def _middle_cut(text: str, limit: int) -> str:
    """The sentence at the beginning says what failed, the last lines of a log say why."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    room = max(limit - len("\n…\n".encode()), 2)
    head, tail = encoded[: room // 3], encoded[-(room - room // 3) :]
    return head.decode("utf-8", "ignore") + "\n…\n" + tail.decode("utf-8", "ignore")
