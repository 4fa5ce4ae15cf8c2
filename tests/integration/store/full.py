"""A database as it stands on a large installation's busiest day."""

from __future__ import annotations

from hatchway.store.pool import Database
from hatchway.store.slots import Held, Slots, Waiting
from tests.integration.store.factory import candidate, reservation, set_caps

ROWS = 100_000
SCALERS = 50
WAITERS = 10_000
EVERYTHING = 200_000
"""The global cap: it is set, so every scaler is every other one's neighbour, and never reached."""
FULL = ("full", "busy")
"""Two more scalers, of one agent each, `holder-<name>`; the line is theirs in turn: w1 for `busy`, w2 for `full` …"""
LARGE = (
    "scaler_spawning_agents",
    "scaler_reservations",
    "scaler_waiters",
    "scaler_provision_outcomes",
    "scaler_agent_jobs",
    "scaler_pending_claims",
    "scaler_agent_tokens",
    "scaler_agent_presence",
)


async def fill(db: Database) -> None:
    """100,000 agents in 50 scalers, as many outcomes, and 10,000 agents in the lines of two that are full."""
    await set_caps(db, {**{f"s{n}": None for n in range(SCALERS)}, **dict.fromkeys(FULL, 1)}, EVERYTHING)
    for scaler in FULL:
        answer = await Slots(db).reserve(reservation(f"holder-{scaler}", candidates=[candidate(scaler)]))
        assert isinstance(answer, Held)
    last = await Slots(db).reserve(reservation("w0", candidates=[candidate(FULL[0])]))  # the others are its copies
    assert isinstance(last, Waiting)
    await db.fetch_all("alter table scaler_reservations disable trigger hatchway_count")
    await db.fetch_all(
        """
        insert into scaler_spawning_agents
          (agent_id, scaler_name, job_id, bound_job_id, workflow_id, workflow_first_run_id, host_id, state,
           adopted_by, adopted_at, registration_id, deadline_at)
        select 'a' || n, 's' || n %% %(scalers)s, 'j' || n, 'j' || n, 'w' || n, 'r' || n, 'h' || n %% 50, 'active',
               'gateway-1', now(), 'reg-1', now() + interval '1 h'
          from generate_series(1, %(rows)s) n
        """,
        {"rows": ROWS, "scalers": SCALERS},
    )
    for statement in (
        "insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes)"
        " select agent_id, scaler_name, 1, 1 from scaler_spawning_agents where state = 'active'",
        "insert into scaler_agent_presence (agent_id, instance_id)"
        " select agent_id, 'gateway-1' from scaler_spawning_agents",
        "insert into scaler_agent_tokens (token_hash, agent_id, claim_hash, registered_at, orchestrator_url)"
        " select 't' || agent_id, agent_id, 'c', now(), 'http://gateway' from scaler_spawning_agents",
        "insert into scaler_pending_claims (claim_hash, claim_prefix, agent_id, scaler_name, agent_token_ttl_ms,"
        " expires_at) select 'c' || agent_id, 'c', agent_id, scaler_name, 1, now() from scaler_spawning_agents",
        "insert into scaler_provision_outcomes (agent_id, job_id, scaler_name)"
        " select 'o' || n, 'oj' || n, 's0' from generate_series(1, 100000) n",
        "insert into scaler_agent_jobs (agent_id, job_id) select 'o' || n, 'oj' || n from generate_series(1, 100000) n",
        "update scaler_capacity set agents = agents + 100000, mcpu = 100000000 where scope = 'global'",
        "insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id,"
        " job_id, spawn, config_version) select 'w' || n, 1, (array['full', 'busy'])[n % 2 + 1], 3, n, 0, 0,"
        " 'w' || n, 'wj' || n, s.spawn, 1"
        " from generate_series(1, 10000) n, (select spawn from scaler_waiters where agent_id = 'w0') s",
        "update scaler_waiters set seq = 10000 + seq where agent_id = 'w0'",
        "select setval('scaler_waiters_seq', 20000)",
    ):
        await db.fetch_all(statement)
    await db.fetch_all("alter table scaler_reservations enable trigger hatchway_count")
    await db.fetch_all("analyze")
