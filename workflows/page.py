"""The page of a provision in the Temporal UI: what it is doing, since when, for whom it waits, and what one can do.

Kept under 2 kB. Text that comes from elsewhere (errors, image names) is fenced, so that it cannot become Markdown.
"""

from __future__ import annotations

from hatchway.model import ProvisionState, ProvisionStatus

LIMIT = 2000
FOREIGN_LIMIT = 700

NEXT_STEP = {
    ProvisionState.RESERVING: "Nothing. If it stays here, Postgres does not answer: see the pending activity.",
    ProvisionState.QUEUED: "Wait, raise the cap that is named here, or `hatchway cancel` it.",
    ProvisionState.RESOLVING: "Nothing. If it stays here, the secret's provider does not answer.",
    ProvisionState.SPAWNING: "See the pending spawn activity and its heartbeat. `hatchway cancel` ends it.",
    ProvisionState.AWAITING_ADOPTION: "Read the agent's own output: `hatchway logs AGENT`. Can it reach the gateway?",
    ProvisionState.ACTIVE: "Nothing. `hatchway release AGENT` lets the job finish first; `--now` does not.",
    ProvisionState.TEARING_DOWN: (
        "Start a worker on that host, or repair its engine. If the machine is gone for good: `hatchway forget AGENT`."
    ),
    ProvisionState.CLOSED: "Nothing: it has ended.",
}


def fenced(text: str, limit: int = FOREIGN_LIMIT) -> str:
    """Foreign text as a code block that it cannot break out of."""
    return "```text\n" + text.replace("`", "'")[:limit] + "\n```"


def render(status: ProvisionStatus) -> str:
    """The page as Markdown."""
    lines = [
        f"### {status.state.value}",
        "",
        f"- **since** {status.since:%Y-%m-%d %H:%M:%S} UTC",
        f"- **waits for** {status.waiting_for}",
        f"- **agent** `{status.agent_id}`" + (f" on scaler `{status.scaler}`" if status.scaler else ""),
    ]
    if status.deadline_at:
        lines.append(f"- **deadline** {status.deadline_at:%Y-%m-%d %H:%M:%S} UTC")
    if status.line_position is not None:
        lines.append(f"- **place in the line** {status.line_position}")
    if status.compute:
        lines.append(f"- **compute** `{status.compute.backend}` on host `{status.compute.host_id}`")
    if status.adopted_by:
        lines.append(f"- **adopted through** `{status.adopted_by}`")
    if status.last_error:
        lines += ["- **last error**", "", fenced(status.last_error)]
    lines += ["", f"**What you can do:** {status.next_step}"]
    return "\n".join(lines)[:LIMIT]
