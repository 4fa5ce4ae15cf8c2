"""`hatchway agent`: the reference agent."""

from __future__ import annotations

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Everything after `agent` is the agent's own: its options, and the command that it runs."""


def agent(context: typer.Context) -> None:
    """Run one command as an agent: redeem the claim, register, work, report.

    `hatchway agent -- CMD…`, or HATCHWAY_AGENT_COMMAND as a JSON array; without either it serves until it is drained.
    """
    from hatchway.agent import main

    raise typer.Exit(main(context.args))
