"""ProvisionWorkflow: one agent for one job, from the request to the released slot.

       ┌── queued ◄──────────────┐ no room, backing off or draining, and willing to wait
       ▼                         │
    reserving ── no match / declined ─────────────────────► failed
       │ slot held, or a warm agent taken: bind it, and follow it (`following.py`)
    resolving ── reference missing, malformed, refused ───► close ► release ► failed
       │
    spawning  ── permanent error, attempts spent, deadline ► close ► teardown ► failed
       │
    awaiting-adoption ── deadline, compute exited ────────► close ► teardown ► failed
       │ adopt
    active ── (warm: until a job binds it) ── completed, release, compute exited, condemn, max lifetime, cancel
       ▼
    tearing-down ─────────────────────────────────────────► closed

Signals only record. The first recorded fact starts the teardown; the outcome is decided once, when the compute is gone,
from all the facts that are known by then:

    completion of an adopted agent > cancel > compute exited > condemn > other release > the stage's own end

The store is the referee between an adoption and a deadline: `close` says who won. An adoption proves the spawn,
whatever the spawn call says. What a cancel must not lose (reserve, close, teardown, release) runs `through_cancel`.

What a provision hears is in `messages.py`, what it knows and says in `standing.py`, what it does in `path.py`, and how
it takes its compute down in `taking_down.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from hatchway.model import ProvisionOutcome, ProvisionRequest
    from workflows import endings
    from workflows.path import Path
    from workflows.requests import parse, refuse_timeouts
    from workflows.steps import through_cancel


@workflow.defn(name="ProvisionWorkflow")
class ProvisionWorkflow(Path):
    @workflow.init
    def __init__(self, *request: Any) -> None:
        super().__init__()

    @workflow.run
    async def run(self, *request: Any) -> ProvisionOutcome:
        """Provision one agent. `request` is a ProvisionRequest, validated here, so that it may come from anywhere.

        Completed: an agent was adopted and later released. Every other end is an ApplicationError of an `ErrorType`.
        """
        try:
            self._request = parse(ProvisionRequest, request)
            refuse_timeouts(workflow.info())
            self._slot = await self._reserve()
            if self._following:
                outcome = await self._follow(self._following)
            else:
                await self._serve()
                outcome = await self._tear_down()
        except (FailureError, asyncio.CancelledError) as end:
            # Whoever waits for the adoption hears the same end. A bug is neither: it wedges, and resumes after a fix.
            self._failure = endings.heard(end)
            self._show_end(*endings.shown(end))
            await through_cancel(workflow.wait_condition(workflow.all_handlers_finished))
            raise
        self._show_end(endings.served(outcome))
        return outcome
