"""What a provision has learnt so far. Signals and updates write here and do nothing else; the path reads."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio import workflow

from activities.models import Decision
from hatchway.model import ComputeExit, EndReason, JobResult, ReleaseRequest
from hatchway.transitions import Facts


@dataclass
class Evidence:
    adopted_by: str | None = None
    completed: bool = False
    """A completion was signalled, or found in the store. What came of the job is read when the outcome is decided."""
    result: JobResult = JobResult.UNKNOWN
    exit: ComputeExit | None = None
    last_output: str = ""
    """What the agent had printed when its teardown ended it, where its host told that in time."""
    condemned: EndReason | None = None
    release: ReleaseRequest | None = None
    stage_end: EndReason | None = None
    """What the current stage ended with by itself: a deadline, a failed spawn, refused credentials."""
    stage_error: str | None = None
    forgotten_by: str | None = None
    """An operator's word that the compute is gone."""

    def facts(self) -> Facts:
        return Facts(
            adopted=bool(self.adopted_by),
            completed=self.completed,
            cancelled=cancelled(),
            exited=self.exit is not None,
            condemned=self.condemned,
            released=self.release.reason if self.release else None,
            stage_end=self.stage_end,
        )

    def ends_it(self, *, bound_to_job: bool) -> bool:
        """A fact that ends the provision now is known. A release of a busy agent is none, unless it says `now`."""
        busy = bool(self.adopted_by) and bound_to_job and not self.completed
        return bool(
            (self.completed and self.adopted_by)
            or cancelled()
            or self.exit
            or self.condemned
            or (self.release and (self.release.now or not busy))
        )

    def stage_ended(self, end: EndReason, error: str | None = None) -> None:
        self.stage_end, self.stage_error = end, error

    def record_release(self, release: ReleaseRequest) -> None:
        """The first one counts; a later one only if it is more urgent."""
        if release.reason is EndReason.COMPLETED:
            self.completed = True
        elif self.release is None or (release.now and not self.release.now):
            self.release = release

    def record_exit(self, exited: ComputeExit, *, tearing_down: bool) -> None:
        """An exit is a fact only until the teardown has begun: from then on it is what the teardown brought about."""
        if tearing_down:
            self.last_output = exited.log_tail
        else:
            self.exit = self.exit or exited

    def record_decision(self, decision: Decision) -> None:
        """The store has decided. It may know of a completion that nobody has signalled yet, and, after a reset, of an
        adoption that this run has never seen.
        """
        if decision.end_reason is EndReason.COMPLETED:
            self.completed, self.result = True, decision.result
            self.adopted_by = self.adopted_by or decision.adopted_by


def cancelled() -> bool:
    """The server was asked to cancel this workflow."""
    return workflow.cancellation_reason() is not None
