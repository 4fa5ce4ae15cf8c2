"""An append-only log of what became of each spawn row, written by a trigger of the test inside the transaction."""

from __future__ import annotations

from dataclasses import dataclass

from hatchway.store.pool import Database

_INSTALL = (
    """
    create table row_log (
      seq          bigint generated always as identity primary key,
      at           timestamptz not null,
      what         text not null,
      agent_id     text not null,
      job_id       text,
      scaler_name  text not null,
      state        text not null,
      adopted_by   text,
      end_reason   text
    )
    """,
    """
    create function row_logged() returns trigger
    language plpgsql security definer set search_path = public, pg_temp as $$
    declare
      r scaler_spawning_agents;
    begin
      if tg_op = 'DELETE' then r := old; else r := new; end if;
      if tg_op = 'UPDATE' and (old.state, old.adopted_by) is not distinct from (new.state, new.adopted_by) then
        return null;
      end if;
      insert into row_log (at, what, agent_id, job_id, scaler_name, state, adopted_by, end_reason)
      values (clock_timestamp(), lower(tg_op), r.agent_id, r.job_id, r.scaler_name, r.state, r.adopted_by,
              r.end_reason);
      return null;
    end $$
    """,
    """
    create trigger row_logged after insert or update or delete on scaler_spawning_agents
      for each row execute function row_logged()
    """,
    """
    create trigger row_log_append_only before update or delete or truncate on row_log
      for each statement execute function append_only()
    """,
)


@dataclass(frozen=True, slots=True)
class RowChange:
    """An insert, delete, or change of state or adopter. `at` is nanoseconds."""

    at: int
    what: str
    agent_id: str
    job_id: str | None
    scaler: str
    state: str
    adopted_by: str | None
    end_reason: str | None


async def log_rows(db: Database) -> None:
    """Start the log; after `log_admissions`, whose guard it shares."""
    for statement in _INSTALL:
        await db.fetch_all(statement)


async def row_changes(db: Database) -> list[RowChange]:
    rows = await db.fetch_all(
        """
        select (extract(epoch from at) * 1000000)::bigint * 1000, what, agent_id, job_id, scaler_name, state,
               adopted_by, end_reason
          from row_log
         order by seq
        """
    )
    return [RowChange(*row) for row in rows]
