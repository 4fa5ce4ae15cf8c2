"""Claim codes: minted inside a spawn, redeemed once by the agent for its token. Only hashes reach the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from hatchway.store.pool import Database
from hatchway.store.rows import seconds


class RefusedBecause(StrEnum):
    """Told apart in logs and metrics; the agent hears one answer for all of them."""

    UNKNOWN = "unknown"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    TEARING_DOWN = "tearing-down"


@dataclass(frozen=True, slots=True)
class Redeemed:
    agent_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    kind: RefusedBecause
    agent_id: str | None = None


class Claims:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def mint(
        self,
        agent_id: str,
        scaler: str,
        labels: Sequence[str],
        *,
        claim_hash: str,
        claim_prefix: str,
        ttl: timedelta,
        agent_token_ttl: timedelta,
        orchestrator_url: str,
    ) -> bool:
        """Record a claim. False when the row is closing or gone: nothing was recorded, nothing may be spawned."""
        return bool(
            await self._db.call(
                "hatchway_mint",
                {
                    "agent_id": agent_id,
                    "scaler": scaler,
                    "labels": list(labels),
                    "claim_hash": claim_hash,
                    "claim_prefix": claim_prefix,
                    "ttl_s": seconds(ttl),
                    "agent_token_ttl_ms": round(agent_token_ttl.total_seconds() * 1000),
                    "orchestrator_url": orchestrator_url,
                },
            )
        )

    async def redeem(self, claim_hash: str, nonce_hash: str, token_hash: str) -> Redeemed | Refused:
        """Spend a claim and record its token, committed before this returns.

        The caller derives the token from code and nonce, so the same two give the same token: allowed until the agent
        has registered, also after the claim's expiry. Any other second use is refused, for all codes of the agent.
        """
        answer = await self._db.call(
            "hatchway_redeem", {"claim_hash": claim_hash, "nonce_hash": nonce_hash, "token_hash": token_hash}
        )
        if answer["answer"] == "redeemed":
            return Redeemed(answer["agent_id"])
        return Refused(RefusedBecause(answer["answer"]), answer.get("agent_id"))
