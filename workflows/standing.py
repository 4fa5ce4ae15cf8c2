"""What a provision knows of itself and what it says: its facts, its page, its search attributes. It takes no step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.models import Binding, ReserveInput, Slot
from hatchway import search_attributes
from hatchway.model import (
    AdoptedSpec,
    ComputeRef,
    EndReason,
    OnCapacity,
    ProvisionRequest,
    ProvisionState,
    ProvisionStatus,
    ScaleDownReason,
)
from hatchway.transitions import decide, wire_reason
from workflows import page
from workflows.evidence import Evidence
from workflows.following import Following
from workflows.stages import Stages


class Standing:
    """Where a provision stands. The path (`provision.py`) and the messages (`messages.py`) write here."""

    def __init__(self) -> None:
        self._agent_id = "scaler-" + workflow.info().original_execution_run_id.replace("-", "")
        self._request: ProvisionRequest | None = None
        self._slot: Slot | None = None
        self._stages = Stages()
        self._seen = Evidence()
        self._granted = False
        self._adopting = 0
        self._spawning: asyncio.Task[None] | None = None
        self._compute: ComputeRef | None = None
        self._failure: ApplicationError | None = None
        self._ending_compute = False
        self._destroying = False
        self._handed_over = False
        self._doubt: str | None = None
        self._following: Following | None = None
        # of a warm agent
        self._bound: Binding | None = None
        self._binding = 0
        self._releases = self._heeded = 0
        self._withdrawn = False
        # what the page says
        self._waiting_for = "a slot"
        self._deadline_at: datetime | None = None
        self._line_position: int | None = None
        self._last_error: str | None = None

    # ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def request(self) -> ProvisionRequest:
        assert self._request is not None  # noqa: S101 - validated before anything else runs
        return self._request

    @property
    def slot(self) -> Slot:
        assert self._slot is not None  # noqa: S101 - held before anything that needs it runs
        return self._slot

    @property
    def _serving(self) -> str:
        """The agent that does the job: this provision's own, or the warm one that it follows."""
        return self._following.warm.agent_id if self._following else self._agent_id

    @property
    def _lifetime(self) -> timedelta | None:
        """Of an agent at work. What a warm one was idle for does not count."""
        return (self._bound.max_lifetime if self._bound else None) or self.slot.max_lifetime

    @property
    def _spawned(self) -> bool:
        return self._spawning is not None and self._spawning.done()

    def _adopted(self) -> bool:
        return bool(self._seen.adopted_by)

    def _over(self) -> bool:
        may_have_a_job = self.request.job_id is not None or (self.request.warm_for is not None and not self._withdrawn)
        return self._seen.ends_it(bound_to_job=may_have_a_job)

    def _end(self) -> EndReason:
        return decide(self._seen.facts())

    async def _until(self, condition: Callable[[], Any], timeout: timedelta | None = None, summary: str = "") -> bool:
        """Wait for the condition or the end; False when the time ran out first. A cancel is a fact, no exception."""
        try:
            await workflow.wait_condition(
                lambda: bool(condition()) or self._over(), timeout=timeout, timeout_summary=summary or None
            )
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            return True
        return True

    # ── words ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _status(self) -> ProvisionStatus:
        return ProvisionStatus(
            agent_id=self._agent_id,
            state=self._stages.state,
            since=self._stages.since,
            scaler=self._slot.scaler if self._slot else None,
            waiting_for=self._waiting_for,
            deadline_at=self._deadline_at,
            line_position=self._line_position,
            last_error=self._last_error,
            compute=self._compute,
            adopted_by=self._seen.adopted_by,
            stages=self._stages.entries,
            next_step=page.next_step(self._stages.state, self._agent_id, self._waiting_for),
        )

    def _enter(
        self, state: ProvisionState, waiting_for: str, *, deadline: datetime | None = None, upsert: bool = False
    ) -> None:
        self._stages.enter(state)
        self._deadline_at, self._last_error = deadline, self._seen.stage_error
        self._say(waiting_for)
        if upsert:
            self._upsert()

    def _say(self, waiting_for: str, last_error: str | None = None) -> None:
        self._waiting_for = waiting_for
        self._last_error = last_error or self._last_error
        workflow.set_current_details(page.render(self._status()))

    def _show_end(self, end: str, error: str | None = None, todo: str | None = None) -> None:
        if self._handed_over:
            todo = (
                f"Its compute is not confirmed gone: see the workflow `teardown/{self._agent_id}`, which goes on with "
                f"that and holds the slot. {todo or ''}"
            )
        if self._doubt:
            todo = f"{page.inline(self._doubt, page.FOREIGN_LIMIT)}. {todo or ''}"
        workflow.set_current_details(page.render_end(self._status(), workflow.now(), end, error, todo))

    def _upsert(self) -> None:
        """Costs an action each, so only where people filter; for a teardown, only when it is no completion's."""
        keys = [
            search_attributes.STATE.value_set(self._stages.state.value),
            search_attributes.AGENT_ID.value_set(self._serving),
        ]
        if self._slot:
            keys.append(search_attributes.SCALER.value_set(self._slot.scaler))
        if run_id := self._bound.run_id if self._bound else self.request.run_id:
            keys.append(search_attributes.RUN_ID.value_set(run_id))
        if self._stages.state is ProvisionState.TEARING_DOWN:
            keys.append(search_attributes.REASON.value_set(self._end().value))
        workflow.upsert_search_attributes(keys)

    def _reserve_input(self, gives_up_at: datetime, patient: bool, takes_warm: bool) -> ReserveInput:
        info = workflow.info()
        return ReserveInput(
            agent_id=self._agent_id,
            workflow_id=info.workflow_id,
            first_run_id=info.first_execution_run_id,
            request=self.request,
            wait=patient and self.request.on_capacity is OnCapacity.WAIT,
            wait_left=max(gives_up_at - workflow.now(), timedelta(seconds=1)),
            takes_warm=takes_warm,
        )

    def _wire_reason(self) -> ScaleDownReason:
        return wire_reason(self._end(), adopted=bool(self._seen.adopted_by))

    def _spec(self) -> AdoptedSpec:
        job = self._bound or self.request
        return AdoptedSpec(
            agent_id=self._serving,
            scaler=self.slot.scaler,
            labels=self.slot.labels,
            mandatory_labels=self.slot.mandatory_labels,
            job_id=job.job_id,
            run_id=job.run_id,
            role=self.request.role,
            warm=self.request.warm_for is not None and self._bound is None,
        )
