"""The calls of an agent that holds a token: register, heartbeat, complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import APIRouter

from hatchway.errors import ErrorType
from hatchway.gateway.belonging import Belonging
from hatchway.gateway.completion import Completions
from hatchway.gateway.credentials import TokenHash
from hatchway.gateway.errors import ApiError, not_registered, superseded, tearing_down, unauthorized
from hatchway.gateway.heartbeats import HeartbeatBatches
from hatchway.gateway.patience import Patience
from hatchway.gateway.provisions import AdoptionRefused, ProvisionGone, Provisions
from hatchway.gateway.settings import GatewaySettings
from hatchway.gateway.tokens import TokenCache
from hatchway.gateway.wire import (
    BoundJob,
    CompleteAnswer,
    CompleteCall,
    HeartbeatAnswer,
    HeartbeatCall,
    Refusal,
    RegisterAnswer,
    RegisterCall,
)
from hatchway.model import AdoptRequest
from hatchway.store.outcomes import Outcomes
from hatchway.store.presence import Beat
from hatchway.store.tokens import TokenRow

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AgentCalls:
    """What the handlers need, so that each of them reads top to bottom."""

    settings: GatewaySettings
    tokens: TokenCache
    heartbeats: HeartbeatBatches
    provisions: Provisions
    completions: Completions
    outcomes: Outcomes
    patience: Patience
    belonging: Belonging

    def router(self) -> APIRouter:
        refusals: dict[int | str, dict[str, Any]] = {status: {"model": Refusal} for status in (401, 409, 410, 503)}
        router = APIRouter(prefix="/v1/agents", tags=["agents"], responses=refusals)
        router.add_api_route("/register", self.register, methods=["POST"])
        router.add_api_route("/heartbeat", self.heartbeat, methods=["POST"], response_model_exclude_none=True)
        router.add_api_route("/complete", self.complete, methods=["POST"])
        return router

    async def register(self, call: RegisterCall, token_hash: TokenHash) -> RegisterAnswer:
        """Adopt this agent process. The same process may register again, here or at any other gateway."""
        token = await self._token(token_hash)
        if token.closing:
            raise tearing_down(_ending(token.end_reason))
        if token.workflow_id is None or token.first_run_id is None:
            raise unauthorized()
        request = AdoptRequest(
            agent_id=token.agent_id, instance_id=self.settings.instance, registration_id=call.registration_id,
            token_hash=token_hash,
        )  # fmt: skip
        try:
            spec = await self.provisions.adopt(token.workflow_id, token.first_run_id, request)
        except AdoptionRefused as e:
            log.warning("agent_refused", agent_id=token.agent_id, reason=e.error_type, version=call.agent_version)
            raise _refused(e) from e
        except ProvisionGone as e:
            log.warning("agent_refused", agent_id=token.agent_id, reason="its provision has ended")
            raise await self._ended(token) from e
        log.info("agent_registered", agent_id=spec.agent_id, scaler=spec.scaler, job_id=spec.job_id)
        return RegisterAnswer(
            **spec.model_dump(),
            heartbeat_interval_s=self.settings.heartbeat_after(idle=spec.warm),
            heartbeat_timeout_s=self.settings.heartbeat_timeout.total_seconds(),
        )

    async def heartbeat(self, call: HeartbeatCall, token_hash: TokenHash) -> HeartbeatAnswer:
        """The agent is alive. 401 and 410 mean stop; 409 means register first, and stops nothing."""
        agent_id = await self.patience(self.tokens.agent_of(token_hash))
        if agent_id is None:
            raise not_registered()
        beat = await self.patience(self.heartbeats.beat(agent_id, call.registration_id))
        if beat.answer is Beat.UNKNOWN:
            self.tokens.forget(token_hash)
            raise unauthorized()
        if beat.answer is Beat.STOP:
            raise tearing_down(_ending(beat.end_reason))
        if beat.answer is Beat.OTHER_REGISTRATION:
            raise superseded()
        return HeartbeatAnswer(
            drain=beat.drain,
            next_in_s=self.settings.heartbeat_after(idle=beat.idle),
            job=None if beat.job_id is None else BoundJob(job_id=beat.job_id, run_id=beat.run_id),
        )

    async def complete(self, call: CompleteCall, token_hash: TokenHash) -> CompleteAnswer:
        """The job has ended. Committed before it is answered; a repeat only tells the provision again."""
        token = await self._token(token_hash)
        if token.registration_id is None:
            raise tearing_down(_ending(token.end_reason)) if token.closing else not_registered()
        completed = await self.completions.complete(
            token.agent_id, call.registration_id, call.result.value, call.exit_code
        )
        return CompleteAnswer(result=completed)

    async def _token(self, token_hash: str) -> TokenRow:
        token = await self.patience(self.tokens.row_of(token_hash))
        if token is None:
            raise unauthorized()
        return token

    async def _ended(self, token: TokenRow) -> ApiError:
        """Why a provision that is no longer open turned its agent away, from what the store has kept."""
        refusal = await self.patience(self.outcomes.refusal(token.agent_id))
        if refusal is not None and refusal.kind == "ended":
            return unauthorized()
        if refusal is None:
            # Temporal's word alone. In another namespace than the agents' it knows none of their provisions.
            await self.belonging.vouch(unknown=True, afresh=True)
        # Closing, or its workflow was terminated and the reaper has not come by yet: either way it will be torn down.
        return tearing_down(_ending(refusal.end_reason if refusal else None))


def _ending(end_reason: str | None) -> str:
    because = f" ({end_reason})" if end_reason else ""
    return f"this agent's provision is being torn down{because}: the agent should stop"


def _refused(e: AdoptionRefused) -> ApiError:
    match e.error_type:
        case ErrorType.TEARING_DOWN:
            return tearing_down()
        case ErrorType.ADOPTED_BY_OTHER:
            return ApiError(409, "adopted", "another process has registered as this agent, and it is alive")
        case _:
            return unauthorized()
