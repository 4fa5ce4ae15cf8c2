"""Warm agents in the store: taken, bound, given back, let go (`migrations/0001_warm.sql` has the rules)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hatchway.store.pool import Database
from hatchway.store.rows import SpawnRow, Wake, seconds, wakes
from hatchway.warming import Scope, WarmAgent

LEAVING = timedelta(seconds=60)
"""So long an agent that was released for the head of a line may take to go. Longer, and it is stuck: the next one."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """`bound`: its workflow has taken the job on after all, and the agent stays with it. `wake`: who got it instead."""

    bound: SpawnRow | None
    wake: list[Wake]


@dataclass(frozen=True, slots=True)
class Relief:
    """`blocked`: an idle warm agent holds what the head of the line needs. `release`: the one that has to go for it."""

    blocked: bool
    again_in: timedelta | None = None
    release: list[Wake] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store knows of one scaler's warm agents, and of what a further one would meet."""

    agents: list[WarmAgent]
    workflows: dict[str, str]
    """Agent id to the id of its workflow."""
    scopes: list[Scope]
    accepting: bool
    backing_off: bool
    waited_for: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """An agent that somebody has taken and that its workflow has not taken on."""

    agent_id: str
    taker: Wake


class WarmAgents:
    def __init__(self, db: Database) -> None:
        self._db = db

    # ── a job's agent ───────────────────────────────────────────────────────────────────────────────────────────

    async def bind(self, agent_id: str, job_id: str) -> SpawnRow | None:
        """The agent's own workflow takes the job on. None: it is not taken for that job, or is on its way out."""
        row = await self._db.call("hatchway_bind", {"agent_id": agent_id, "job_id": job_id})
        return None if row is None else SpawnRow.from_json(row)

    async def give_back(self, by: str) -> GivenBack:
        """Let go of what this provision has taken, unless the agent's workflow has taken the job on."""
        answer = await self._db.call("hatchway_give_back", {"by": by}, admission=True)
        bound = answer["bound"]
        return GivenBack(None if bound is None else SpawnRow.from_json(bound), wakes(answer["wake"]))

    async def withdraw(self, agent_id: str) -> bool:
        """Ask an agent to go. True: nobody has taken it, and nobody can any more. False: it has a job to finish."""
        return bool(await self._db.call("hatchway_withdraw", {"agent_id": agent_id}))

    # ── a pool ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def offer(self, scalers: Sequence[str]) -> list[Wake]:
        """Give ready agents to whoever is first in these scalers' lines and can use them: signal each `granted`."""
        if not await self._db.fetch_value(
            """
            select exists (
              select from unnest(%(scalers)s::text[]) line (scaler_name)
               cross join lateral (
                 select agent_id
                   from scaler_waiters w
                  where w.scaler_name = line.scaler_name and not parked
                  order by priority, seq, rank
                  limit 1) head)
            """,
            {"scalers": list(scalers)},
        ):
            return []
        return wakes(await self._db.call("hatchway_offer_ready", {"scalers": list(scalers)}, admission=True))

    async def retire(self, agent_ids: Iterable[str]) -> list[Wake]:
        """Mark those that are still idle, so that no job can take them, and name them: signal each to go."""
        return wakes(await self._db.call("hatchway_retire_idle", {"agents": list(agent_ids)}))

    async def relieve(self, scaler: str, patience: timedelta) -> Relief:
        """Mark the oldest idle warm agent that keeps the head of this scaler's line waiting for longer than that."""
        answer: Mapping[str, Any] = await self._db.call(
            "hatchway_relieve",
            {"scaler": scaler, "patience_s": seconds(patience), "leaving_s": seconds(LEAVING)},
            admission=True,
        )
        again = answer.get("again_in_s")
        return Relief(
            answer["blocked"], None if again is None else timedelta(seconds=again), wakes(answer.get("release"))
        )

    async def pools(self) -> list[str]:
        """The scalers that have warm agents without a job, whatever the configuration says."""
        rows = await self._db.fetch_all(
            """
            select distinct scaler_name
              from scaler_spawning_agents
             where warm_key is not null and bound_job_id is null
             order by scaler_name
            """
        )
        return [name for (name,) in rows]

    async def standing(self, scaler: str) -> Standing:
        """One scaler's pool, as it stands."""
        agents = await self._db.fetch_all(
            """
            select agent_id, workflow_id, warm_key,
                   case when state = 'active' then now() - adopted_at end,
                   case when state = 'active' and not hatchway_ready(s)
                        then now() - coalesce(drain_requested_at, now())
                        else now() - drain_requested_at end
              from scaler_spawning_agents s
             where scaler_name = %(scaler)s and warm_key is not null and bound_job_id is null and state <> 'closing'
            """,
            {"scaler": scaler},
        )
        scopes = await self._db.fetch_all(
            """
            select c.max_agents, c.agents, c.max_mcpu, c.mcpu, c.max_mem_bytes, c.mem_bytes
              from scaler_capacity s
              join scaler_capacity c on c.scope in (s.scope, s.pool, 'global')
             where s.scaler_name = %(scaler)s
            """,
            {"scaler": scaler},
        )
        state = await self._db.fetch_one(
            """
            select coalesce((select accepting from scaler_capacity where scaler_name = %(scaler)s), false),
                   exists (select from scaler_failures where scaler_name = %(scaler)s and backoff_until > now()),
                   (select agent_id from scaler_waiters
                     where scaler_name = %(scaler)s and not parked
                     order by priority, seq, rank
                     limit 1) is not null
            """,
            {"scaler": scaler},
        )
        assert state is not None  # noqa: S101 - a select without a table has one row
        return Standing(
            agents=[WarmAgent(agent, key, idle, leaving) for agent, _, key, idle, leaving in agents],
            workflows={agent: workflow for agent, workflow, *_ in agents if workflow is not None},
            scopes=[Scope(*scope) for scope in scopes],
            accepting=state[0],
            backing_off=state[1],
            waited_for=state[2],
        )

    async def counts(self) -> dict[str, tuple[int, int]]:
        """Scaler to its warm agents without a job: (ready, in flight). For people and gauges."""
        rows = await self._db.fetch_all(
            """
            select scaler_name, state = 'active', count(*)
              from scaler_spawning_agents
             where warm_key is not null and bound_job_id is null and state <> 'closing' and drain_requested_at is null
             group by scaler_name, state = 'active'
            """
        )
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for scaler, ready, number in rows:
            found[scaler][0 if ready else 1] += number
        return {scaler: (ready, in_flight) for scaler, (ready, in_flight) in found.items()}

    async def unanswered(self, older_than: timedelta, limit: int = 200) -> list[Taken]:
        """Agents that were taken so long ago and not bound: is the taker's workflow there at all?"""
        rows = await self._db.fetch_all(
            """
            select agent_id, bound_workflow_id, bound_first_run_id, bound_by
              from scaler_spawning_agents
             where bound_by is not null and bound_at is null and taken_at < now() - %(older_than)s::interval
             order by taken_at
             limit %(limit)s
            """,
            {"older_than": older_than, "limit": limit},
        )
        return [Taken(agent_id, Wake(*taker)) for agent_id, *taker in rows]
