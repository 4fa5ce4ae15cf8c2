"""Databases as an installation may have them: caps on everything, agents at work, a line of those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hatchway.store.config_versions import Capacity, ConfigVersions
from hatchway.store.pool import Database
from tests.support.postgres_fixtures import PostgresServer
from tests.support.stack import laptop

HOT = "hot"
POOL = "machines"
CAP = 10_000_000
"""Agents that every scope has room for, and as many CPUs and GiB: each cap is looked at, and none ends the run."""
GIB = 2**30


async def database(
    server: PostgresServer,
    *,
    scalers: Sequence[str] = (HOT,),
    rows: int = 0,
    full: Sequence[str] = (),
    waiters: int = 0,
) -> str:
    """A database whose scalers share one pool, with every cap of every scope set.

    `rows` agents are at work, in the scalers in turn. `waiters` stand in the lines of the `full` ones, in turn, whose
    agents have reached their cap.
    """
    dsn = await asyncio.to_thread(server.database)
    roomy = Capacity("", max_agents=CAP, max_mcpu=CAP * 1000, max_mem_bytes=CAP * GIB)
    scopes = [replace(roomy, scope="global"), replace(roomy, scope=f"pool:{POOL}")]
    scopes += [replace(roomy, scope=f"scaler:{name}", scaler=name, pool=f"pool:{POOL}") for name in scalers]
    async with Database.open(dsn, max_size=1) as db:
        await _apply(db, scopes)
        await db.fetch_all(
            """
            create table bench_inserts (
              agent_id    text primary key,
              scaler_name text not null,
              reserved_at timestamptz not null default now()
            )
            """
        )
        if rows:
            await _fill(db, scalers, rows)
        if waiters:
            lowered = [replace(s, max_agents=1) if s.scaler in full else s for s in scopes]
            await _apply(db, lowered)
            await _line_up(db, full, waiters)
        await db.fetch_all("vacuum analyze")
    return dsn


async def _apply(db: Database, scopes: Sequence[Capacity]) -> None:
    await ConfigVersions(db).apply(
        laptop(), source="bench", by="bench", note=None, expected_version=None, capacities=scopes
    )  # fmt: skip


async def _line_up(db: Database, full: Sequence[str], waiters: int) -> None:
    await db.fetch_all(
        """
        insert into scaler_waiters
          (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, job_id, spawn, config_version)
        select 'waits-' || n, 1, (%(full)s::text[])[n %% cardinality(%(full)s::text[]) + 1], 3,
               nextval('scaler_waiters_seq'), 1000, 1073741824, 'w' || n, 'waits-' || n, '{}', 1
          from generate_series(1, %(waiters)s) n
        """,
        {"full": list(full), "waiters": waiters},
    )


async def _fill(db: Database, scalers: Sequence[str], rows: int) -> None:
    """Agents that are adopted and at work. The counters are set at once: row by row would take a minute."""
    await db.fetch_all("alter table scaler_reservations disable trigger hatchway_count")
    await db.fetch_all(
        """
        insert into scaler_spawning_agents
          (agent_id, scaler_name, job_id, bound_job_id, workflow_id, workflow_first_run_id, host_id, state,
           adopted_by, adopted_at, registration_id)
        select 'live-' || n, (%(scalers)s::text[])[n %% cardinality(%(scalers)s::text[]) + 1], 'live-' || n,
               'live-' || n, 'w' || n, 'r' || n, 'h' || n %% 50, 'active', 'gateway-1', now(), 'reg-1'
          from generate_series(1, %(rows)s) n
        """,
        {"scalers": list(scalers), "rows": rows},
    )
    for statement in (
        """
        insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes, machine_pool)
        select agent_id, scaler_name, 1, 1073741824, 'machines'
          from scaler_spawning_agents
        """,
        """
        insert into scaler_provision_outcomes (agent_id, job_id, scaler_name, adopted_by, adopted_at)
        select agent_id, job_id, scaler_name, adopted_by, adopted_at
          from scaler_spawning_agents
        """,
        """
        insert into scaler_agent_jobs (agent_id, job_id)
        select agent_id, job_id
          from scaler_spawning_agents
        """,
        """
        update scaler_capacity c
           set agents = used.agents, mcpu = used.mcpu, mem_bytes = used.mem_bytes
          from (select x.scope, count(*) agents, sum(r.mcpu) mcpu, sum(r.mem_bytes) mem_bytes
                  from scaler_reservations r
                  join scaler_capacity x on x.scope in ('global', 'pool:' || r.machine_pool, 'scaler:' || r.scaler_name)
                 group by x.scope) used
         where used.scope = c.scope
        """,
    ):
        await db.fetch_all(statement)
    await db.fetch_all("alter table scaler_reservations enable trigger hatchway_count")
