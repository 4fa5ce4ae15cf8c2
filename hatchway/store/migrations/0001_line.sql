-- Admission: the lock, the counters, what binds, and the line that hands room over.
--
-- Functions that code calls fix their search_path; those that only they call inherit it, and save a few microseconds
-- under the lock.

-- Every state change is one message: `call hatchway_call('hatchway_<verb>', {...}, null)` on an autocommit connection.
-- A function cannot choose its transaction's isolation, and under a server whose default is repeatable read or
-- serializable it would judge by a snapshot from before the lock: 27 rows were admitted under a cap of 20. A procedure
-- that commits first can, and does where the default is another. It is neither security definer nor has it a SET clause,
-- which forbid the commit, so names in it are qualified. It runs with the caller's rights: whoever may not execute the
-- function, may not here either.
create procedure hatchway_call(p_function text, p_arguments jsonb, inout answer jsonb)
language plpgsql as $$
begin
  if pg_catalog.current_setting('transaction_isolation') <> 'read committed' then
    commit;
    set transaction isolation level read committed;
  end if;
  perform pg_catalog.set_config('lock_timeout', '5s', true),
          pg_catalog.set_config('synchronous_commit', 'on', true);
  if p_function !~ '^hatchway_[a-z_]+$' then
    raise exception 'not a function of the store: %', p_function using errcode = '22023';
  end if;
  execute pg_catalog.format('select public.%I($1)', p_function) into answer using p_arguments;
end $$;

-- The one admission lock: first statement of reserve, release, config apply and the sweep of the line, and no lock is
-- taken before it. A lock per scaler deadlocks as soon as a request has several candidates.
create function hatchway_lock() returns void language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'admission needs READ COMMITTED, not %', current_setting('transaction_isolation')
      using errcode = '25001', hint = 'go through hatchway_call, which pins it';
  end if;
  perform pg_advisory_xact_lock(hashtextextended('hatchway:admission', 0));
end $$;

create function hatchway_row(s scaler_spawning_agents) returns jsonb language sql stable as $$
  select to_jsonb(s) || jsonb_build_object('read_at', now()) $$;

-- Use follows the reservations, whoever writes them.
create function hatchway_count() returns trigger language plpgsql set search_path = public, pg_temp as $$
declare
  r    scaler_reservations;
  sign int;
begin
  if tg_op = 'DELETE' then r := old; sign := -1; else r := new; sign := 1; end if;
  update scaler_capacity
     set agents = agents + sign,
         mcpu = mcpu + sign * r.mcpu,
         mem_bytes = mem_bytes + sign * r.mem_bytes
   where scope in ('global', 'pool:' || r.machine_pool, 'scaler:' || r.scaler_name);
  return null;
end $$;
create trigger hatchway_count after insert or delete on scaler_reservations
  for each row execute function hatchway_count();

-- Null when it fits now; else what stands in the way:
--   full        the narrowest scope that has no room; it will, when somebody leaves
--   never-fits  the empty scope would be too small
--   retired, draining, backing-off   the scaler takes nobody now, however many leave
create function hatchway_bound(p_scaler text, p_mcpu bigint, p_mem bigint) returns jsonb language plpgsql stable as $$
declare
  s     scaler_capacity;
  c     scaler_capacity;
  fails scaler_failures;
  what  text;
  bound jsonb;
begin
  -- Nearly always it fits, which one look can tell; what stands in the way takes several.
  perform from scaler_capacity x
    where x.scope = 'scaler:' || p_scaler
      and x.accepting
      and not x.retired
      and not exists (select from scaler_failures f where f.scaler_name = p_scaler and f.backoff_until > now())
      and not exists (
        select from scaler_capacity y
         where y.scope in (x.scope, x.pool, 'global')
           and (y.agents >= y.max_agents or y.mcpu + p_mcpu > y.max_mcpu or y.mem_bytes + p_mem > y.max_mem_bytes));
  if found then
    return null;
  end if;
  select * into s from scaler_capacity where scope = 'scaler:' || p_scaler;
  if not found or s.retired then
    return jsonb_build_object('kind', 'retired', 'scope', 'scaler:' || p_scaler);
  elsif not s.accepting then
    return jsonb_build_object('kind', 'draining', 'scope', s.scope);
  end if;
  select * into fails from scaler_failures where scaler_name = p_scaler and backoff_until > now();
  if found then
    return jsonb_build_object('kind', 'backing-off', 'scope', s.scope, 'until', fails.backoff_until,
                              'code', fails.last_code, 'message', fails.last_message);
  end if;
  c := s;
  loop
    what := case when c.max_agents < 1 then 'agents'
                 when p_mcpu > c.max_mcpu then 'mcpu'
                 when p_mem > c.max_mem_bytes then 'mem_bytes' end;
    if what is not null then
      return hatchway_numbers('never-fits', what, c, p_mcpu, p_mem);
    end if;
    if bound is null then
      what := case when c.agents >= c.max_agents then 'agents'
                   when c.mcpu + p_mcpu > c.max_mcpu then 'mcpu'
                   when c.mem_bytes + p_mem > c.max_mem_bytes then 'mem_bytes' end;
      if what is not null then
        bound := hatchway_numbers('full', what, c, p_mcpu, p_mem);
      end if;
    end if;
    exit when c.scope = 'global';
    select * into c from scaler_capacity
     where scope = case when c.scope = s.scope and s.pool is not null then s.pool else 'global' end;
    exit when not found;
  end loop;
  return bound;
end $$;

create function hatchway_numbers(p_kind text, p_what text, c scaler_capacity, p_mcpu bigint, p_mem bigint)
returns jsonb language sql immutable as $$
  select jsonb_build_object('kind', p_kind, 'scope', c.scope, 'what', p_what)
      || case p_what
           when 'agents' then jsonb_build_object('used', c.agents, 'cap', c.max_agents, 'want', 1)
           when 'mcpu' then jsonb_build_object('used', c.mcpu, 'cap', c.max_mcpu, 'want', p_mcpu)
           else jsonb_build_object('used', c.mem_bytes, 'cap', c.max_mem_bytes, 'want', p_mem) end $$;

-- Could the scaler hold this shape if it were empty?
create function hatchway_ever(p_scaler text, p_mcpu bigint, p_mem bigint) returns boolean language sql stable as $$
  select exists (
    select from scaler_capacity s
     where s.scaler_name = p_scaler
       and not s.retired
       and not exists (
         select from scaler_capacity c
          where c.scope in (s.scope, s.pool, 'global')
            and (c.max_agents < 1 or p_mcpu > c.max_mcpu or p_mem > c.max_mem_bytes))) $$;

create function hatchway_take(p_state text, p_agent text, p_scaler text, p_mcpu bigint, p_mem bigint,
  p_workflow text, p_job text, p_spawn jsonb, p_config_version bigint)
returns scaler_spawning_agents language plpgsql as $$
declare
  s scaler_spawning_agents;
begin
  insert into scaler_spawning_agents
    (agent_id, scaler_name, label_set, run_id, job_id, bound_job_id, owner_instance_id, mandatory_labels,
     provisioning_targets, roles, backend_type, workflow_id, workflow_first_run_id, state, deadline_at, config_version,
     warm_key)
  values
    (p_agent, p_scaler, p_spawn->'label_set', p_spawn->>'run_id', p_job, p_job, p_spawn->>'owner_instance_id',
     p_spawn->'mandatory_labels', p_spawn->'provisioning_targets', p_spawn->'roles', p_spawn->>'backend_type',
     p_workflow, p_spawn->>'workflow_first_run_id', p_state,
     now() + make_interval(secs => (p_spawn->>'reserved_for_s')::double precision), p_config_version,
     p_spawn->>'made_warm')
  returning * into s;
  insert into scaler_reservations (agent_id, scaler_name, cpu_units, mem_bytes, machine_pool, owner_instance_id)
  select p_agent, p_scaler, p_mcpu / 1000.0, p_mem, substr(pool, length('pool:') + 1), p_spawn->>'owner_instance_id'
    from scaler_capacity
   where scaler_name = p_scaler;
  return s;
end $$;

-- Returns the scalers whose lines it left.
create function hatchway_leave(p_agent text) returns text[] language plpgsql as $$
declare
  left_lines text[];
begin
  with gone as (delete from scaler_waiters where agent_id = p_agent returning scaler_name)
  select array_agg(scaler_name) into left_lines from gone;
  return coalesce(left_lines, '{}');
end $$;

-- The scalers that share a capped scope with one of p, p included: what happens in one of them can matter to another.
create function hatchway_neighbours(p text[]) returns text[] language sql stable as $$
  select coalesce(array_agg(s.scaler_name), '{}')
    from scaler_capacity s
   where s.scaler_name is not null
     and (s.scaler_name = any (p)
          or s.pool in (select x.pool from scaler_capacity x where x.scaler_name = any (p))
          or exists (select from scaler_capacity g
                      where g.scope = 'global'
                        and (g.max_agents, g.max_mcpu, g.max_mem_bytes) is distinct from (null, null, null))) $$;

-- Of those: the ones with a line, that accept, and have an agent's room. The limit keeps the look at the line an index
-- probe for each scaler; an `exists` is planned as a join that reads the whole line, under the admission lock. Each
-- scope is looked up once, too: asked for every scaler, it would be fifty times fifty rows with fifty scalers.
-- In plpgsql for its cached plans: most majors plan a statement of an SQL function anew at each call.
create function hatchway_reach(p text[]) returns text[] language plpgsql stable as $$
declare
  near text[];
begin
  -- By the index, as below: after a long line has gone, a scan would read its dead rows until a vacuum.
  if (select agent_id from scaler_waiters where not parked order by scaler_name, priority, seq, rank limit 1) is null
     or exists (select from scaler_capacity where scope = 'global' and agents >= max_agents) then
    return '{}';
  end if;
  near := hatchway_neighbours(p);
  return coalesce((
    select array_agg(s.scaler_name)
      from scaler_capacity s
      left join scaler_capacity pool on pool.scope = s.pool
     where s.scaler_name = any (near)
       and s.accepting
       and (s.agents >= s.max_agents) is not true
       and (pool.agents >= pool.max_agents) is not true
       and not exists (select from scaler_failures f where f.scaler_name = s.scaler_name and f.backoff_until > now())
       and (select w.agent_id
              from scaler_waiters w
             where w.scaler_name = s.scaler_name and not w.parked
             order by w.priority, w.seq, w.rank
             limit 1) is not null), '{}');
end $$;

-- Hands room to the line, best waiter first. Who does not fit holds the scopes that bound it: nobody behind gets in
-- there, or a big one would starve behind a stream of small ones. p: the scalers where room may have opened.
create function hatchway_pump(p text[]) returns void language plpgsql as $$
declare
  open   text[] := hatchway_reach(p);
  held   text[] := '{}';
  shut   text[];
  waiter record;
  c      record;
  why    jsonb;
  taken  boolean;
begin
  while cardinality(open) > 0 loop
    select head.* into waiter
      from unnest(open) o (name)
     cross join lateral (
       select agent_id, priority, seq
         from scaler_waiters
        where scaler_name = o.name and not parked
        order by priority, seq, rank
        limit 1) head
     order by head.priority, head.seq
     limit 1;
    exit when not found;
    taken := false;
    shut := '{}';
    for c in
      select * from scaler_waiters
       where agent_id = waiter.agent_id and scaler_name = any (open) and not parked
       order by rank
    loop
      why := hatchway_bound(c.scaler_name, c.mcpu, c.mem_bytes);
      if why is null then
        p := p || hatchway_leave(c.agent_id);           -- the lines that it leaves have new heads
        perform hatchway_take('granted', c.agent_id, c.scaler_name, c.mcpu, c.mem_bytes, c.workflow_id, c.job_id,
                              c.spawn, c.config_version);
        taken := true;
        exit;
      elsif why->>'kind' = 'full' then
        shut := shut || array(select scaler_name from scaler_capacity
                               where scaler_name is not null
                                 and (why->>'scope' = 'global' or why->>'scope' in (scope, pool)));
      else                                              -- open scalers accept, and misfits are parked; so that this
        shut := shut || c.scaler_name;                  -- loop ends even if that were broken one day
      end if;
    end loop;
    if taken then
      open := array(select x from unnest(hatchway_reach(p)) x where x <> all (held));
    else
      held := held || shut;
      open := array(select x from unnest(open) x where x <> all (shut));
    end if;
  end loop;
end $$;

-- Grants that nobody has taken up: whoever sees them signals their workflows, at least once. 5 s: a signal and the
-- reserve that follows take less; until then one caller is enough. p_all: the reply that named them may be lost.
create function hatchway_wake(p_all boolean default false) returns jsonb language plpgsql as $$
declare
  wake jsonb;
begin
  -- Materialized, or the planner may look for the first hundred once for every row, and name them all.
  with few as materialized (
    select agent_id
      from scaler_spawning_agents
     where state = 'granted'
       and (p_all or coalesce(notified_at, '-infinity') < now() - interval '5 s')
     order by spawned_at
     limit 100
       for no key update skip locked),
  told as (
    update scaler_spawning_agents s
       set notified_at = now()
      from few
     where s.agent_id = few.agent_id
    returning s.workflow_id, s.workflow_first_run_id, s.agent_id)
  select jsonb_agg(to_jsonb(told)) into wake from told;
  return coalesce(wake, '[]');
end $$;

-- 1 = next, among those who may be in its way. Counts at most 1,000 candidates ahead, 1001 says "far back": it is
-- computed under the admission lock, for people to read, and the whole of a long line would cost each who joins it
-- several times what the rest of its reserve does.
create function hatchway_position(p_agent text) returns int language sql stable as $$
  select 1 + count(distinct ahead.agent_id)::int
    from (select w.agent_id
            from (select min(priority) priority, min(seq) seq, array_agg(scaler_name) scalers
                    from scaler_waiters
                   where agent_id = p_agent) mine
           cross join unnest(hatchway_neighbours(mine.scalers)) line (scaler_name)
           cross join lateral (
             select agent_id
               from scaler_waiters
              where scaler_name = line.scaler_name
                and not parked
                and (priority, seq) < (mine.priority, mine.seq)
              order by priority, seq, rank
              limit 1000) w
           limit 1000) ahead $$;

-- Where a waiter stands, and what each of its candidates meets: as its own workflow was told at its last reserve, but now.
create function hatchway_why(p_agent text) returns jsonb language plpgsql stable as $$
declare
  v_position int := hatchway_position(p_agent);
begin
  return jsonb_build_object('position', v_position, 'bound', hatchway_bounds(
    (select jsonb_agg(jsonb_build_object('scaler', scaler_name, 'mcpu', mcpu, 'mem_bytes', mem_bytes) order by rank)
       from scaler_waiters
      where agent_id = p_agent), v_position));
end $$;

create function hatchway_pump_all(p_arguments jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  perform hatchway_lock();
  perform hatchway_pump(array(select scaler_name from scaler_capacity where scaler_name is not null));
  return hatchway_wake();
end $$;
