-- Config versions and the caps that they set, under the admission lock: no old worker admits under an old cap.

-- A shape that no empty scope could hold steps aside, and comes back to its old place when a config lets it. Judged once
-- for each shape, not for each waiter: ten thousand who want the same cost one look.
create function hatchway_park() returns void language plpgsql as $$
begin
  with shapes as materialized (
    select scaler_name, mcpu, mem_bytes, not hatchway_ever(scaler_name, mcpu, mem_bytes) as misfit
      from (select distinct scaler_name, mcpu, mem_bytes from scaler_waiters) x)
  update scaler_waiters w set parked = s.misfit
    from shapes s
   where (w.scaler_name, w.mcpu, w.mem_bytes) = (s.scaler_name, s.mcpu, s.mem_bytes) and w.parked <> s.misfit;
end $$;

-- Waiters that were planned under an older config, at most p_limit, best first: whoever is told signals their workflows,
-- whose next reserve plans them anew at their place. Until then the candidates that they have stand in the line, so
-- nobody gets past them. Nobody is told twice of one config within a minute: a signal is an event in a history.
create function hatchway_outdated(p_limit int) returns jsonb language plpgsql as $$
declare
  v scaler_config_versions;
  told jsonb;
begin
  select * into v from scaler_config_versions order by version desc limit 1;
  -- Materialized, or the planner may look for the first p_limit once for every row, and tell everybody.
  with few as materialized (
    select agent_id
      from scaler_waiters
     where rank = 1
       and config_version is distinct from v.version
       and coalesce(told_at, '-infinity') < greatest(v.applied_at, now() - interval '1 min')
     order by priority, seq
     limit p_limit
       for no key update skip locked),
  picked as (
    update scaler_waiters w
       set told_at = now()
      from few
     where w.agent_id = few.agent_id and w.rank = 1
    returning w.workflow_id, w.spawn->>'workflow_first_run_id' as workflow_first_run_id, w.agent_id, w.priority, w.seq)
  select jsonb_agg(to_jsonb(p) - 'priority' - 'seq' order by priority, seq) into told from picked p;
  return coalesce(told, '[]');
end $$;

-- The sweep's way to them: without the admission lock, as nothing that admission reads is changed. args: limit
create function hatchway_replan(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  return hatchway_outdated((args->>'limit')::int);
end $$;

-- What a scaler's agents are found again by, as one text: its type, and of instances the place that they run in.
create function hatchway_kind(p_scaler jsonb) returns text language sql immutable as $$
  select (p_scaler->>'type') || coalesce(' in ' || (p_scaler->'ec2'->>'region'), '')
                             || coalesce(' at ' || (p_scaler->'ec2'->>'endpointUrl'), '') $$;

-- Scalers that would change their kind while agents of the old one live, or wait to be made: a retry or a teardown would
-- be sent to workers that do not have what it needs, or that look in the wrong place. A scaler that the version in force
-- has as the same kind cannot have agents of another one, or that version would have been refused: so an ordinary apply
-- looks at no row. A waiting job is planned anew, in the new place; of another type it must not be. p_capacities as below.
create function hatchway_type_changes(p_capacities jsonb) returns jsonb language sql stable as $$
  with in_force as (
    select coalesce((select content->'scalers' from scaler_config_versions order by version desc limit 1),
                    '[]') as scalers),
  asked as (
    select c->>'scaler' as scaler, c->>'backend_type' as becomes, split_part(c->>'backend_type', ' ', 1) as of_type
      from jsonb_array_elements(p_capacities) c
     where c->>'backend_type' is not null
       and not exists (select from in_force, jsonb_array_elements(in_force.scalers) p
                        where p->>'name' = c->>'scaler' and hatchway_kind(p) = c->>'backend_type')),
  lives as (
    select a.scaler, a.becomes, s.agent_id,
           coalesce((select hatchway_kind(p)
                       from scaler_config_versions v, jsonb_array_elements(v.content->'scalers') p
                      where v.version = s.config_version
                        and p->>'name' = s.scaler_name
                        and p->>'type' = s.backend_type),
                    case when s.backend_type = a.of_type then a.becomes else s.backend_type end) as was
      from asked a join scaler_spawning_agents s on s.scaler_name = a.scaler),
  used as (
    select scaler, was, becomes, agent_id, false as waits
      from lives
     where was <> becomes
    union all
    select a.scaler, w.spawn->>'backend_type', a.becomes, w.agent_id, true
      from asked a join scaler_waiters w on w.scaler_name = a.scaler and w.spawn->>'backend_type' <> a.of_type)
  select coalesce(jsonb_agg(to_jsonb(x) order by x.scaler), '[]')
    from (select scaler, min(was) as was, becomes,
                 count(*) filter (where not waits) as agents,
                 count(distinct agent_id) filter (where waits) as waiters
            from used
           group by scaler, becomes) x $$;

-- args: content, source, by, note, sha256, expected_version (null: whatever it is; 0: there is none yet),
--       capacities [{scope, scaler, pool, max_agents, max_mcpu, max_mem_bytes, backend_type}]
create function hatchway_apply_config(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_current bigint;
begin
  perform hatchway_lock();
  select max(version) into v_current from scaler_config_versions;
  if (args->>'expected_version')::bigint <> coalesce(v_current, 0) then
    return jsonb_build_object('answer', 'conflict', 'current', coalesce(v_current, 0));
  end if;
  if hatchway_type_changes(args->'capacities') <> '[]' then
    return jsonb_build_object('answer', 'type-changed', 'scalers', hatchway_type_changes(args->'capacities'));
  end if;
  insert into scaler_config_versions (version, parent, source, content, sha256, applied_by, note)
  values (coalesce(v_current, 0) + 1, v_current, args->>'source', args->'content', args->>'sha256', args->>'by',
          args->>'note');

  -- A scope never goes while something may still count in it; out of the config it has no cap and takes nobody.
  update scaler_capacity
     set max_agents = null, max_mcpu = null, max_mem_bytes = null,
         accepting = accepting and scaler_name is null,
         drained_at = null, drained_by = null,
         retired = scaler_name is not null
   where scope not in (select c->>'scope' from jsonb_array_elements(args->'capacities') c);
  insert into scaler_capacity as k (scope, scaler_name, pool, max_agents, max_mcpu, max_mem_bytes)
  select c->>'scope', c->>'scaler', c->>'pool', (c->>'max_agents')::bigint, (c->>'max_mcpu')::bigint,
         (c->>'max_mem_bytes')::bigint
    from jsonb_array_elements(args->'capacities') c
  on conflict (scope) do update
     set pool = excluded.pool,
         max_agents = excluded.max_agents,
         max_mcpu = excluded.max_mcpu,
         max_mem_bytes = excluded.max_mem_bytes,
         accepting = k.accepting or k.retired,          -- a drain outlives an apply, retirement does not
         retired = false;

  perform hatchway_park();
  perform hatchway_pump(array(select scaler_name from scaler_capacity where scaler_name is not null));
  return jsonb_build_object('answer', 'applied', 'version', coalesce(v_current, 0) + 1,
                            'wake', hatchway_wake() || hatchway_outdated(100));     -- the sweep tells the rest
end $$;

-- A drain, and its end. Who waits for this scaler hears of it, at most 100 here: their page says what they wait for.
-- args: scaler, accepting, by
create function hatchway_accept(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_scaler text := args->>'scaler';
  v_accept boolean := (args->>'accepting')::boolean;
  c        scaler_capacity;
  told     jsonb;
begin
  perform hatchway_lock();
  select * into c from scaler_capacity where scaler_name = v_scaler and not retired;
  if not found then
    return jsonb_build_object('known', false);
  end if;
  if c.accepting <> v_accept then
    update scaler_capacity
       set accepting = v_accept,
           drained_at = case when v_accept then null else now() end,
           drained_by = case when v_accept then null else args->>'by' end
     where scaler_name = v_scaler;
    perform hatchway_pump(array[v_scaler]);
    select jsonb_agg(to_jsonb(w)) into told
      from (select workflow_id, spawn->>'workflow_first_run_id' as workflow_first_run_id, agent_id
              from scaler_waiters
             where scaler_name = v_scaler and not parked
             order by priority, seq, rank
             limit 100) w;
  end if;
  return jsonb_build_object('known', true, 'changed', c.accepting <> v_accept,
                            'wake', hatchway_wake() || coalesce(told, '[]'));
end $$;

-- A failure counts when its attempt began after the last one that counted: one outage under eight spawns is one
-- failure, and a repeated call counts once. Jitter 0.8 to 1.0, so that the maximum is one.
-- args: scaler, agent_id, began_at, code, message, base_s, max_s
create function hatchway_failed(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_began timestamptz := (args->>'began_at')::timestamptz;
  v_base  double precision := (args->>'base_s')::double precision;
  v_max   double precision := (args->>'max_s')::double precision;
  f       scaler_failures;
begin
  insert into scaler_failures (scaler_name) values (args->>'scaler') on conflict do nothing;
  select * into f from scaler_failures where scaler_name = args->>'scaler' for update;
  if v_began > coalesce(f.counted_from, '-infinity') then
    f.consecutive := f.consecutive + 1;
    f.counted_from := now();
    f.backoff_until := now() + make_interval(
      secs => least(v_base * 2 ^ least(f.consecutive - 1, 30), v_max) * (0.8 + 0.2 * random()));
  end if;
  update scaler_failures
     set consecutive = f.consecutive,
         counted_from = f.counted_from,
         backoff_until = f.backoff_until,
         last_agent_id = args->>'agent_id',
         last_code = args->>'code',
         last_message = args->>'message',
         last_failed_at = now()
   where scaler_name = args->>'scaler'
  returning * into f;
  return to_jsonb(f);
end $$;
