"""A log of every slot that a database gives and takes back, and the judge of it.

The log is append-only, written by a trigger of the test inside the admitting transaction, and read in its own order:
that of the admission lock. The judge adds the use up by itself, and takes the caps from what the test applied; of the
store it believes only which config version an admission committed under.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hatchway.store.config_versions import Capacity
from hatchway.store.pool import Database

GLOBAL = "global"

_INSTALL = (
    """
    create table admission_log (
      seq            bigint generated always as identity primary key,
      at             timestamptz not null,
      admitted       boolean not null,
      agent_id       text not null,
      scaler_name    text not null,
      pool           text,
      mcpu           bigint not null,
      mem_bytes      bigint not null,
      config_version bigint not null
    )
    """,
    """
    create function admission_logged() returns trigger language plpgsql as $$
    declare
      r scaler_reservations;
    begin
      if tg_op = 'DELETE' then r := old; else r := new; end if;
      insert into admission_log (at, admitted, agent_id, scaler_name, pool, mcpu, mem_bytes, config_version)
      select clock_timestamp(), tg_op = 'INSERT', r.agent_id, r.scaler_name, 'pool:' || r.machine_pool, r.mcpu,
             r.mem_bytes, (select max(version) from scaler_config_versions);
      return null;
    end $$
    """,
    """
    create trigger admission_logged after insert or delete on scaler_reservations
      for each row execute function admission_logged()
    """,
    """
    create function append_only() returns trigger language plpgsql as $$
    begin
      raise exception 'the log of admissions is append-only';
    end $$
    """,
    """
    create trigger append_only before update or delete or truncate on admission_log
      for each statement execute function append_only()
    """,
)


@dataclass(frozen=True, slots=True)
class Admission:
    """A slot given (`admitted`) or taken back, at `at` by the database's clock."""

    at: datetime
    admitted: bool
    agent_id: str
    scaler: str
    pool: str | None
    """`pool:<name>`, the one that it counts in."""
    mcpu: int
    mem_bytes: int
    config_version: int

    @property
    def scopes(self) -> list[str]:
        return [GLOBAL, f"scaler:{self.scaler}", *([self.pool] if self.pool else [])]


async def log_admissions(db: Database) -> None:
    """Start the log. For a database of the test's own, before anything is admitted there."""
    for statement in _INSTALL:
        await db.fetch_all(statement)


async def admissions(db: Database) -> list[Admission]:
    """The log so far, in order."""
    rows = await db.fetch_all(
        """
        select at, admitted, agent_id, scaler_name, pool, mcpu, mem_bytes, config_version
          from admission_log
         order by seq
        """
    )
    return [Admission(*row) for row in rows]


async def break_the_admission_lock(db: Database, lingering: float = 0.02) -> None:
    """What the judge must see. So many seconds between looking and taking: it needs no luck for two to meet there."""
    await db.fetch_all(
        "create or replace function hatchway_lock() returns void language plpgsql as $$ begin return; end $$"
    )
    await db.fetch_all("create table lingering (seconds float8)")
    await db.fetch_all("insert into lingering values (%(seconds)s)", {"seconds": lingering})
    await db.fetch_all(
        """
        create function linger() returns trigger language plpgsql as
        $$ begin perform pg_sleep(seconds) from lingering; return new; end $$
        """
    )
    await db.fetch_all(
        "create trigger linger before insert on scaler_spawning_agents for each row execute function linger()"
    )


@dataclass
class Judge:
    """Replays a log against the caps of each config version."""

    caps: Mapping[int, Sequence[Capacity]]

    def breaches(self, log: Iterable[Admission]) -> list[str]:
        """A sentence for each admission that stood above a cap in force, or in another pool than the config's."""
        agents, mcpu, mem_bytes = Counter[str](), Counter[str](), Counter[str]()
        found = []
        for entry in log:
            sign = 1 if entry.admitted else -1
            for scope in entry.scopes:
                agents[scope] += sign
                mcpu[scope] += sign * entry.mcpu
                mem_bytes[scope] += sign * entry.mem_bytes
            if not entry.admitted:
                continue
            in_force = {capacity.scope: capacity for capacity in self.caps[entry.config_version]}
            scaler = in_force.get(f"scaler:{entry.scaler}")
            if scaler is None or scaler.pool != entry.pool:
                found.append(f"{entry.agent_id} was admitted to {entry.scaler} in {entry.pool}, not as configured")
            for scope in entry.scopes:
                cap = in_force.get(scope, Capacity(scope))
                for what, use, most in (
                    ("agents", agents[scope], cap.max_agents),
                    ("mcpu", mcpu[scope], cap.max_mcpu),
                    ("mem_bytes", mem_bytes[scope], cap.max_mem_bytes),
                ):
                    if most is not None and use > most:
                        found.append(
                            f"{entry.agent_id}, admitted under version {entry.config_version}, "
                            f"made it {use} {what} in {scope}, where {most} is the cap"
                        )
        return found

    @staticmethod
    def most(log: Iterable[Admission], scope: str = GLOBAL) -> int:
        """The high-water mark of agents in a scope."""
        now = most = 0
        for entry in log:
            if scope in entry.scopes:
                now += 1 if entry.admitted else -1
                most = max(most, now)
        return most
