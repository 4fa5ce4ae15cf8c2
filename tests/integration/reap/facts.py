"""What the reaper goes by, as a test wants it: rows are aged, nobody waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hatchway.client import Started
from hatchway.store.claims import Claims, Redeemed
from hatchway.store.pool import Database
from hatchway.store.presence import Presence
from tests.support.lab import Lab
from tests.support.namespaces import until
from tests.support.stack import laptop

SHORT = {
    "agentTimeoutSeconds": 1,
    "instanceTimeoutSeconds": 45,
    "flapGraceSeconds": 1,
    "strandedTimeoutSeconds": 1800,
    "reattemptSeconds": 600,
}
"""For what cannot be aged: the time at which Temporal says that a workflow was closed."""


def quick(**scaler: Any) -> dict[str, Any]:
    return {**laptop(**scaler), "reaper": SHORT}


async def gateway(db: Database, name: str = "gateway-1", alive_for: float = 3600, silent_for: float = -3600) -> None:
    """A gateway that has been alive for so many seconds and was last heard of so many seconds ago.

    When nothing is said of that, it is heard of however long a test takes.
    """
    await Presence(db).instance_beat(name, "gateway", "1", [], None)
    await db.fetch_all(
        """
        update scaler_instances
           set alive_since = now() - make_interval(secs => %(since)s), last_seen_at = now() - make_interval(secs => %(silent)s)
         where instance_id = %(name)s
        """,  # noqa: E501
        {"name": name, "since": alive_for, "silent": silent_for},
    )


async def silent(db: Database, seconds: float, *agent_ids: str) -> None:
    """These agents, or all of them, were last heard of so many seconds ago."""
    await db.fetch_all(
        """
        update scaler_agent_presence
           set last_seen_at = now() - make_interval(secs => %(seconds)s)
         where agent_id = any (%(agents)s) or cardinality(%(agents)s::text[]) = 0
        """,
        {"seconds": seconds, "agents": list(agent_ids)},
    )


async def redeemed(db: Database) -> None:
    """Who was given a claim has redeemed it, as agents do before they register: its URL is the one that they go by."""
    for (claim,) in await db.fetch_all("select claim_hash from scaler_pending_claims where consumed_at is null"):
        assert isinstance(await Claims(db).redeem(claim, "nonce", f"token-of-{claim}"), Redeemed)


async def heard_at(db: Database, name: str, agent: Started, for_s: float = 3600, registration: str = "r-1") -> None:
    """The agent is heard of at this gateway now, and has been without a gap for so many seconds."""
    await Presence(db).beat(name, [(agent.agent_id, registration)])
    await db.fetch_all(
        """
        update scaler_agent_presence
           set heard_since = now() - make_interval(secs => %(for_s)s)
         where agent_id = %(agent)s
        """,
        {"agent": agent.agent_id, "for_s": for_s},
    )


async def aged(db: Database, column: str, seconds: float, agent_id: str) -> None:
    """A time of its row was so many seconds ago."""
    await db.fetch_all(
        f"update scaler_spawning_agents set {column} = now() - make_interval(secs => %(s)s) where agent_id = %(a)s",  # noqa: S608 - a column of this file
        {"s": seconds, "a": agent_id},
    )


async def terminated(lab: Lab, started: Started, for_so_long: timedelta = timedelta(seconds=1)) -> None:
    """Its workflow was ended without any cleanup, and that has been so for a while."""
    await lab.handle(started).terminate("by test")
    closed = (await lab.handle(started).describe()).close_time

    async def passed() -> bool:
        return bool(await lab.db.fetch_value("select now() - %(at)s >= %(long)s", {"at": closed, "long": for_so_long}))

    await until(passed)


async def state_of(lab: Lab, started: Started) -> str | None:
    row = await lab.slots.get(started.agent_id)
    return None if row is None else row.state.value


async def reaped(lab: Lab) -> dict[str, int]:
    """What a pass has done, without its zeros."""
    swept = await lab.sweep()
    assert swept.failed == {}
    return {what: number for what, number in swept.steps["reap"].done.items() if number}
