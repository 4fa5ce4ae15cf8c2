"""When each thing that an agent is waited for has happened, as far as the database knows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hatchway.store.pool import Database


@dataclass(frozen=True, slots=True)
class Timeline:
    """Moments of one agent, by the database's clock. A claim's goes with the claim, when its row begins to close."""

    reserved_at: datetime | None = None
    redeemed_at: datetime | None = None
    adopted_at: datetime | None = None
    completed_at: datetime | None = None
    decided_at: datetime | None = None
    """The compute was gone, and what came of it was decided."""
    closed_at: datetime | None = None
    """The slot was free."""


async def timeline(db: Database, agent_id: str) -> Timeline:
    """What is known of this agent now; an agent that nobody knows has an empty one."""
    row = await db.fetch_one(
        """
        select (select reserved_at from scaler_reservations where agent_id = %(agent_id)s),
               (select min(consumed_at) from scaler_pending_claims where agent_id = %(agent_id)s),
               (select adopted_at from scaler_provision_outcomes where agent_id = %(agent_id)s),
               (select completed_at from scaler_agent_jobs where agent_id = %(agent_id)s),
               (select decided_at from scaler_provision_outcomes where agent_id = %(agent_id)s),
               (select closed_at from scaler_provision_outcomes where agent_id = %(agent_id)s)
        """,
        {"agent_id": agent_id},
    )
    return Timeline(*row) if row else Timeline()
