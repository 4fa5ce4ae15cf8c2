"""POST /v1/claims/redeem: a one-time claim code becomes the agent's token."""

from __future__ import annotations

import structlog
from fastapi import APIRouter, Request

from hatchway.gateway.credentials import CLAIM_PREFIX_LENGTH, derive_token, digest
from hatchway.gateway.errors import ApiError
from hatchway.gateway.patience import Patience
from hatchway.gateway.ratelimit import COME_AGAIN_S, RefusalLimit
from hatchway.gateway.settings import GatewaySettings
from hatchway.gateway.wire import RedeemAnswer, RedeemCall, Refusal
from hatchway.metrics import Metrics
from hatchway.store.claims import Claims, Redeemed

log = structlog.get_logger(__name__)


def claim_refused() -> ApiError:
    """One answer for unknown, consumed and expired: a caller who guesses learns nothing from it."""
    return ApiError(403, "claim_refused", "this claim code is unknown, already used or expired; ask for a new agent")


def limited(wait_s: int, metrics: Metrics) -> ApiError:
    metrics.claim_redemption("rate-limited")
    return ApiError(429, "rate_limited", "too many refused claims from this address", {"Retry-After": str(wait_s)})


def claims_router(
    settings: GatewaySettings, claims: Claims, limit: RefusalLimit, metrics: Metrics, patience: Patience
) -> APIRouter:
    router = APIRouter(prefix="/v1/claims", tags=["claims"])

    @router.post("/redeem", responses={403: {"model": Refusal}, 429: {"model": Refusal}, 503: {"model": Refusal}})
    async def redeem(call: RedeemCall, request: Request) -> RedeemAnswer:
        """Redeem a claim code. The same code with the same nonce answers the same token until the agent registers.

        A good code is good though bad ones come from its address; who guesses there is answered 429, and slowly.
        """
        address = request.client.host if request.client else "unknown"
        wait_s = limit.wait_s(address)
        if wait_s and not await limit.turn(address):
            raise limited(COME_AGAIN_S, metrics)
        code, nonce = call.claim_code.get_secret_value(), call.nonce.get_secret_value()
        token = derive_token(code, nonce)
        answer = await patience(claims.redeem(digest(code), digest(nonce), digest(token)))
        prefix = code[:CLAIM_PREFIX_LENGTH]
        if not isinstance(answer, Redeemed):
            if wait_s:
                raise limited(wait_s, metrics)
            limit.refused(address)
            metrics.claim_redemption(answer.kind)
            log.warning("claim_refused", claim_prefix=prefix, reason=answer.kind, address=address)
            raise claim_refused()
        metrics.claim_redemption("redeemed")
        log.info("claim_redeemed", claim_prefix=prefix, agent_id=answer.agent_id)
        return RedeemAnswer(
            agent_id=answer.agent_id,
            token=token,
            heartbeat_interval_s=settings.heartbeat_interval.total_seconds(),
        )

    return router
