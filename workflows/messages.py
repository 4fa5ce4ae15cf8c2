"""What a provision hears: its updates, signals and its query. Signals only record, in `Evidence`; the path reads."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from activities.adoption import AdoptionActivities
from activities.models import AdoptInput, AdoptKind, BindingInput
from activities.warm import WarmActivities
from hatchway.errors import ErrorType
from hatchway.model import (
    AdoptedSpec,
    AdoptRequest,
    BindRequest,
    ComputeExit,
    CondemnRequest,
    FollowedEnded,
    ForgetRequest,
    GrantedRequest,
    ProvisionStatus,
    ReleaseRequest,
    WaitRequest,
)
from hatchway.transitions import ADOPTABLE, CONDEMNS, RELEASES
from workflows import endings
from workflows.requests import addressed, parse
from workflows.standing import Standing
from workflows.steps import store


class Messages(Standing):
    @workflow.update(description="The agent has reached a gateway instance and asks to be this provision's agent.")
    async def adopt(self, *request: Any) -> AdoptedSpec:
        adopt = parse(AdoptRequest, request)
        self._adopting += 1
        try:
            answer = await store(
                AdoptionActivities.adopt,
                AdoptInput(
                    agent_id=self._agent_id, instance_id=adopt.instance_id, registration_id=adopt.registration_id
                ),
                summary=f"adopt through {adopt.instance_id}",
            )
            if answer.kind is AdoptKind.ADOPTED:
                self._seen.adopted_by = adopt.instance_id
        finally:
            self._adopting -= 1
        if answer.kind is not AdoptKind.ADOPTED:
            raise endings.adoption_refused(answer)
        return self._spec()

    @adopt.validator
    def _may_adopt(self, *request: Any) -> None:
        adopt = parse(AdoptRequest, request)
        if adopt.agent_id != self._agent_id:
            raise endings.ended(ErrorType.NO_SUCH_PROVISION, f"this provision's agent is {self._agent_id}")
        if self._stages.state not in ADOPTABLE:
            raise endings.not_adoptable(self._stages.state)

    @workflow.update(description="A job has taken this warm agent: it is that job's from now on.")
    async def bind(self, *request: Any) -> AdoptedSpec:
        bind = parse(BindRequest, request)
        self._binding += 1
        try:
            answer = await store(
                WarmActivities.confirm,
                BindingInput(agent_id=self._agent_id, job_id=bind.job_id),
                summary=f"take on job {bind.job_id}",
            )
            if answer.bound and not self._bound:
                self._bound = answer.bound.model_copy(update={"max_lifetime": bind.max_lifetime})
                self._upsert()
        finally:
            self._binding -= 1
        if answer.bound is None:
            raise endings.ended(ErrorType.NOT_BOUND, "this warm agent was not taken for that job, or is going")
        return self._spec()

    @bind.validator
    def _may_bind(self, *request: Any) -> None:
        bind = parse(BindRequest, request)
        if bind.agent_id != self._agent_id or self.request.warm_for is None:
            raise endings.ended(ErrorType.NOT_BOUND, f"this provision's agent is {self._agent_id}, which is not warm")
        if self._stages.state not in ADOPTABLE:
            raise endings.ended(ErrorType.NOT_BOUND, f"this warm agent is {self._stages.state.value}")

    @workflow.update(description="Waits until an agent is adopted, and answers what it is; fails with the provision.")
    async def wait_adopted(self, *request: Any) -> AdoptedSpec:
        parse(WaitRequest, [{}] if request in ((), (None,)) else request)
        await workflow.wait_condition(lambda: bool(self._seen.adopted_by and self._slot) or self._failure is not None)
        if self._seen.adopted_by and self._slot:
            return self._spec()
        assert self._failure is not None  # noqa: S101 - the condition above
        raise self._failure

    @workflow.signal(
        description="This agent may go: its job is complete, or it is idle, drained or not wanted any more."
    )
    def release(self, *request: Any) -> None:
        release = addressed(ReleaseRequest, request, self._agent_id)
        if release and release.reason not in RELEASES:
            workflow.logger.warning("a release does not carry the reason %s: ignored", release.reason.value)
        elif release:
            self._releases += 1
            self._seen.record_release(release)

    @workflow.signal(description="The reaper has condemned this agent, on facts that it has just checked.")
    def condemn(self, *request: Any) -> None:
        condemn = addressed(CondemnRequest, request, self._agent_id)
        if condemn and condemn.reason not in CONDEMNS:
            workflow.logger.warning("nobody is condemned for the reason %s: ignored", condemn.reason.value)
        elif condemn:
            self._seen.condemned = self._seen.condemned or condemn.reason

    @workflow.signal(description="The agent's container or process is gone.")
    def compute_exited(self, *request: Any) -> None:
        if exited := addressed(ComputeExit, request, self._agent_id):
            self._seen.record_exit(exited, tearing_down=self._ending_compute)

    @workflow.signal(description="The warm agent that serves this provision's job has ended.")
    def followed_ended(self, *request: Any) -> None:
        if (ended := addressed(FollowedEnded, request, self._agent_id)) and self._following:
            self._following.record_end(ended)

    @workflow.signal(description="The line has handed a slot over: take it up.")
    def granted(self, *request: Any) -> None:
        if addressed(GrantedRequest, request, self._agent_id):
            self._granted = True

    @workflow.signal(description="An operator's word that the compute is gone and nobody can confirm it.")
    def forget_compute(self, *request: Any) -> None:
        forget = addressed(ForgetRequest, request, self._agent_id)
        if forget and not self._destroying:
            # Remembered, it would keep a later teardown from touching what runs now.
            workflow.logger.warning("%s is not forgotten: nobody has begun to destroy it", self._agent_id)
        elif forget:
            workflow.logger.warning("the compute of %s is forgotten, by %s", self._agent_id, forget.by)
            self._seen.forgotten_by = forget.by

    @workflow.query(description="What it is doing, since when, for whom it waits, and what one can do.")
    def status(self, *_request: Any) -> ProvisionStatus:
        return self._status()
