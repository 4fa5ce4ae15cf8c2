"""A provision whose job a warm agent serves. It has no slot of its own: it binds the warm agent, and follows it.

    reserve ── warm ──► bind ── refused: it lets go, and reserves anew ──► reserve
                          │ bound
                          ▼
                        follow ── the warm provision's word, or what the store says of it ──► the same end

The warm provision tells how it ended as soon as its outcome is decided. That word may be lost (its workflow terminated,
its agent torn down without it), so the store is asked as well, less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from activities.models import BindInput, FollowedInput, LetGoInput, WarmAgent
from activities.warm import WarmActivities
from hatchway.model import EndReason, FollowedEnded, ProvisionRequest, ReleaseRequest
from workflows.evidence import Evidence, cancelled
from workflows.steps import store, through_cancel

MOST_REFUSALS = 3
"""So many warm agents may say no to a job; then it gets one of its own."""

FIRST_LOOK = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=15)


class Following:
    def __init__(self, agent_id: str, warm: WarmAgent) -> None:
        self._agent_id = agent_id
        self.warm = warm
        self.ended: FollowedEnded | None = None
        self._passed_on: ReleaseRequest | None = None

    @classmethod
    async def bind(cls, agent_id: str, request: ProvisionRequest, warm: WarmAgent, scaler: str) -> Following | None:
        """Have the warm agent take the job on. None: it did not, and is not this provision's any more."""
        assert request.job_id is not None  # noqa: S101 - only a job takes one
        answer = await through_cancel(
            store(
                WarmActivities.bind,
                BindInput(
                    agent_id=agent_id, warm=warm, scaler=scaler, job_id=request.job_id, run_id=request.run_id,
                    max_lifetime=request.max_lifetime,
                ),
                summary=f"bind the warm agent {warm.agent_id}",
            )
        )  # fmt: skip
        return cls(agent_id, warm) if answer.bound else None

    def record_end(self, ended: FollowedEnded) -> None:
        """The first word counts. One of another agent is none."""
        if ended.served_by == self.warm.agent_id:
            self.ended = self.ended or ended

    async def until_ended(self, seen: Evidence, nudged: Callable[[], bool]) -> FollowedEnded:
        """How the warm agent ended. A cancel, and a release that is meant for this provision, are passed on to it.

        `nudged`: somebody says that there is something to be seen.
        """
        pause = FIRST_LOOK
        while self.ended is None:
            if wish := self._wish(seen):
                self._passed_on = wish
                await through_cancel(
                    store(
                        WarmActivities.let_go,
                        LetGoInput(warm=self.warm, release=wish),
                        summary=f"ask {self.warm.agent_id} to go: {wish.reason.value}",
                    )
                )
                pause = FIRST_LOOK
            elif not await self._hears(seen, nudged, pause):
                answer = await through_cancel(
                    store(
                        WarmActivities.look,
                        FollowedInput(agent_id=self._agent_id, warm=self.warm),
                        summary="look how the warm agent ended",
                    )
                )
                if answer.ended:
                    self.record_end(answer.ended)
                pause = FIRST_LOOK if answer.closing else min(pause * 2, LONGEST_PAUSE)
        return self.ended

    async def _hears(self, seen: Evidence, nudged: Callable[[], bool], pause: timedelta) -> bool:
        """False: it is time to look."""
        try:
            await workflow.wait_condition(
                lambda: self.ended is not None or self._wish(seen) is not None or nudged(),
                timeout=pause,
                timeout_summary="look whether the warm agent has ended",
            )
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            return True
        return self.ended is not None or self._wish(seen) is not None

    def _wish(self, seen: Evidence) -> ReleaseRequest | None:
        """What the warm agent has to hear and has not heard yet."""
        by = f"the provision {self._agent_id}"
        if cancelled():
            wish = ReleaseRequest(agent_id=self.warm.agent_id, reason=EndReason.RELEASED, by=by, now=True)
        elif seen.release:
            wish = seen.release.model_copy(update={"agent_id": self.warm.agent_id})
        else:
            return None
        return None if wish == self._passed_on else wish
