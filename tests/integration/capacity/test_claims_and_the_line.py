"""An agent's claim is as old as its spawn, however long its job stood in the line."""

from __future__ import annotations

import hashlib

import pytest

from hatchway.model import ProvisionState
from hatchway.store.claims import Claims, Redeemed
from tests.support.lab import Lab, running_lab
from tests.support.namespaces import Namespaces
from tests.support.stack import laptop

WAITED = "3 h"
"""Many times what a claim lives (five minutes)."""


async def claims_of(lab: Lab, agent_id: str) -> list[float]:
    """Seconds that each claim of the agent has left."""
    rows = await lab.db.fetch_all(
        """
        select extract(epoch from expires_at - now())::float8
          from scaler_pending_claims
         where agent_id = %(agent_id)s
        """,
        {"agent_id": agent_id},
    )
    return [seconds for (seconds,) in rows]


@pytest.mark.scenario("S27")
async def test_a_job_that_waited_longer_than_a_claim_lives_gets_one_that_is_minted_at_its_spawn(
    namespaces: Namespaces, database_url: str
) -> None:
    async with running_lab(namespaces, database_url, laptop(maxAgents=1, claimTtlSeconds=300)) as lab:
        holder = await lab.provision(job_id="holder")
        await lab.reaches(holder, ProvisionState.AWAITING_ADOPTION)
        waiting = await lab.provision(job_id="waiting", wait_timeout=86_400)
        await lab.reaches(waiting, ProvisionState.QUEUED)
        await lab.db.fetch_all(
            "update scaler_waiters set enqueued_at = enqueued_at - %(waited)s::interval", {"waited": WAITED}
        )
        assert await claims_of(lab, waiting.agent_id) == []

        await lab.release(holder)
        await lab.reaches(waiting, ProvisionState.AWAITING_ADOPTION)

        (left,) = await claims_of(lab, waiting.agent_id)
        assert 240 < left <= 300
        code = lab.backend.specs[waiting.agent_id].env["KICI_SCALER_CLAIM_CODE"]
        redeemed = await Claims(lab.db).redeem(hashlib.sha256(code.encode()).hexdigest(), "nonce", "token")
        assert redeemed == Redeemed(waiting.agent_id)
        await lab.adopt(waiting)
        await lab.complete(waiting)
        await lab.outcome(waiting)
        await lab.nothing_left()
