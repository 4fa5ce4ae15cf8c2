-- Warm agents: made ahead of jobs, bound to one when a job comes. The row is the referee. `bound_by` is set under the
-- admission lock by whoever takes it; `bound_at` by its own workflow, which then answers for the job. Until then the
-- taker can give it back, and the agent hears nothing: a job must not begin on an agent that may yet be refused to it.

-- Warm, and without a job that it runs; also while somebody has taken it and its workflow has not said yes yet.
create function hatchway_idle(s scaler_spawning_agents) returns boolean language sql immutable as $$
  select s.warm_key is not null and s.bound_at is null $$;

-- The job that the agent's end says something about. One that took it and was refused was not served by it.
create function hatchway_job(s scaler_spawning_agents) returns text language sql immutable as $$
  select case when s.warm_key is null or s.bound_at is not null then coalesce(s.bound_job_id, s.job_id) end $$;

-- Closing and completed ones are on their way out, as are those that were asked to go.
create function hatchway_ready(s scaler_spawning_agents) returns boolean language sql stable as $$
  select s.warm_key is not null and s.state = 'active' and s.bound_job_id is null and s.drain_requested_at is null
     and not exists (select from scaler_agent_jobs j where j.agent_id = s.agent_id and j.completed_at is not null) $$;

-- The answer to whoever has taken a warm agent.
create function hatchway_warm(s scaler_spawning_agents) returns jsonb language sql stable as $$
  select hatchway_held(s, false, '[]') || jsonb_build_object('answer', 'warm') $$;

-- Takes the agent that has been ready for longest; null: there is none. Who closes or withdraws one has its row locked
-- without the admission lock: that one is passed over.
create function hatchway_take_warm(p_agent text, p_scaler text, p_key text, p_workflow text, p_first_run text,
  p_job text, p_run text) returns scaler_spawning_agents language plpgsql as $$
declare
  s scaler_spawning_agents;
begin
  select * into s
    from scaler_spawning_agents w
   where w.scaler_name = p_scaler and w.warm_key = p_key and w.bound_job_id is null and hatchway_ready(w)
   order by w.adopted_at
   limit 1
     for no key update skip locked;
  if not found then
    return null;
  end if;
  update scaler_spawning_agents
     set bound_job_id = p_job, run_id = p_run, bound_by = p_agent, bound_workflow_id = p_workflow,
         bound_first_run_id = p_first_run, taken_at = now(), state_version = state_version + 1
   where agent_id = s.agent_id
  returning * into s;
  return s;
end $$;

-- For a job that does not wait yet. Whoever waits for that scaler was there before, and gets the next that is ready.
-- args as of reserve
create function hatchway_take_ready(args jsonb) returns jsonb language plpgsql as $$
declare
  c jsonb;
  s scaler_spawning_agents;
begin
  for c in
    select value from jsonb_array_elements(args->'candidates') where value->>'takes_warm' is not null
  loop
    continue when (select agent_id from scaler_waiters
                    where scaler_name = c->>'scaler' and not parked
                    order by priority, seq, rank
                    limit 1) is not null;
    continue when not exists (select from scaler_capacity where scaler_name = c->>'scaler' and accepting);
    s := hatchway_take_warm(args->>'agent_id', c->>'scaler', c->>'takes_warm', args->>'workflow_id',
                            args#>>'{spawn,workflow_first_run_id}', args->>'job_id', args#>>'{spawn,run_id}');
    if s.agent_id is not null then
      return hatchway_warm(s);
    end if;
  end loop;
  return null;
end $$;

-- Called again by who has taken one, or by a later start of the same workflow, whose earlier one is closed then. One
-- that its workflow never took on, and now does not any more, is let go of: a fresh look. args as of reserve
-- A later start is another request, which never stood in the line.
create function hatchway_taken(args jsonb) returns jsonb language plpgsql as $$
declare
  s scaler_spawning_agents;
begin
  update scaler_spawning_agents
     set bound_by = args->>'agent_id', bound_first_run_id = args#>>'{spawn,workflow_first_run_id}', taken_at = now(),
         taken_from = null
   where bound_job_id = args->>'job_id' and bound_at is null and state <> 'closing'
     and bound_workflow_id = args->>'workflow_id' and bound_by <> args->>'agent_id';
  select * into s from scaler_spawning_agents where bound_by = args->>'agent_id' order by taken_at desc limit 1;
  if not found then
    return null;
  end if;
  if s.bound_at is null and s.state = 'closing' then
    perform hatchway_untake(args->>'agent_id');
    return null;
  end if;
  return hatchway_warm(s);
end $$;

-- Lets go of what p_by has taken, unless the agent's workflow has taken the job on. Answers its scaler. A taker that the
-- line gave it to stands there again, at its place: an agent that died under it must not cost it its turn. Its next
-- reserve plans it anew, and until then it is offered no other: it may be about to refuse them all.
create function hatchway_untake(p_by text) returns text language plpgsql as $$
declare
  s scaler_spawning_agents;
begin
  select * into s from scaler_spawning_agents where bound_by = p_by and bound_at is null for no key update;
  if not found then
    return null;
  end if;
  update scaler_spawning_agents
     set bound_job_id = null, run_id = null, bound_by = null, bound_workflow_id = null, bound_first_run_id = null,
         taken_at = null, taken_from = null, state_version = state_version + 1
   where agent_id = s.agent_id;
  insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, job_id, spawn,
                              config_version, parked, enqueued_at, deadline_at)
  select w.agent_id, w.rank, w.scaler_name, w.priority, w.seq, w.mcpu, w.mem_bytes, w.workflow_id, w.job_id,
         (w.spawn - 'takes_warm') || '{"plan_anew": true}', w.config_version,
         not hatchway_ever(w.scaler_name, w.mcpu, w.mem_bytes), w.enqueued_at, w.deadline_at
    from jsonb_populate_recordset(null::scaler_waiters, s.taken_from) w;
  return s.scaler_name;
end $$;

-- Ready agents for those who wait for these scalers: each to the head of the line, if it is what that one wants. The
-- answer names them like grants; the next reserve of each answers with its agent. Where nobody is admitted, nobody gets
-- one: it may have become ready after the drain. Under the admission lock.
create function hatchway_offer(p_scalers text[]) returns jsonb language plpgsql as $$
declare
  v_scaler text;
  head     scaler_waiters;
  s        scaler_spawning_agents;
  told     jsonb := '[]';
begin
  foreach v_scaler in array p_scalers loop
    continue when not exists (select from scaler_capacity where scaler_name = v_scaler and accepting);
    loop
      select * into head
        from scaler_waiters
       where scaler_name = v_scaler and not parked
       order by priority, seq, rank
       limit 1;
      exit when not found or head.job_id is null or head.spawn->>'takes_warm' is null;
      s := hatchway_take_warm(head.agent_id, v_scaler, head.spawn->>'takes_warm', head.workflow_id,
                              head.spawn->>'workflow_first_run_id', head.job_id, head.spawn->>'run_id');
      exit when s.agent_id is null;
      update scaler_spawning_agents
         set taken_from = (select jsonb_agg(to_jsonb(w)) from scaler_waiters w where w.agent_id = head.agent_id)
       where agent_id = s.agent_id;
      perform hatchway_pump(hatchway_leave(head.agent_id));
      told := told || jsonb_build_object('workflow_id', head.workflow_id, 'agent_id', head.agent_id,
                                         'workflow_first_run_id', head.spawn->>'workflow_first_run_id');
    end loop;
  end loop;
  return case when told = '[]' then told else told || hatchway_wake() end;
end $$;

-- What speaks against one more agent of a pool, judged under the lock, so that two fills never overshoot. The caps are
-- judged after it, like everybody's. args as of reserve
create function hatchway_pool_refusal(args jsonb) returns jsonb language plpgsql stable as $$
declare
  c        jsonb := args#>'{candidates,0}';
  v_target int := (args->>'warm_target')::int;
  v_there  int;
begin
  if (args->>'config_version')::bigint
     <> (select version from scaler_config_versions order by version desc limit 1) then
    return jsonb_build_object('answer', 'pool-refused', 'why', 'another configuration is in force by now');
  elsif (select agent_id from scaler_waiters
          where scaler_name = c->>'scaler' and not parked
          order by priority, seq, rank
          limit 1) is not null then
    return jsonb_build_object('answer', 'pool-refused', 'why', 'jobs wait for this scaler');
  end if;
  select count(*) into v_there
    from scaler_spawning_agents s
   where s.scaler_name = c->>'scaler' and s.warm_key = c#>>'{spawn,made_warm}' and s.bound_job_id is null
     and s.state <> 'closing' and s.drain_requested_at is null;
  if v_there >= v_target then
    return jsonb_build_object('answer', 'pool-refused',
                              'why', format('the pool has its %s of %s agents', v_there, v_target));
  end if;
  return null;
end $$;

-- Its workflow takes the job on. args: agent_id, job_id. Answers who has taken it, or null. The row is locked by a
-- statement of its own: a completion only locks it, so an update that waited for one would judge by what it saw before,
-- and give the job to an agent that had just ended without it.
create function hatchway_bind(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
begin
  perform from scaler_spawning_agents where agent_id = args->>'agent_id' for no key update;
  update scaler_spawning_agents
     set bound_at = coalesce(bound_at, now()), taken_from = null, state_version = state_version + 1
   where agent_id = args->>'agent_id'
     and bound_job_id = args->>'job_id'
     and bound_by is not null
     and (bound_at is not null
          or (state = 'active'
              and not exists (select from scaler_agent_jobs
                               where agent_id = args->>'agent_id' and completed_at is not null)))
  returning * into s;
  if not found then
    return null;
  end if;
  insert into scaler_agent_jobs (agent_id, run_id, job_id)
  values (s.agent_id, s.run_id, s.bound_job_id)
  on conflict (agent_id) do nothing;
  update scaler_provision_outcomes set job_id = s.bound_job_id, updated_at = now()
   where agent_id = s.agent_id and job_id is null;
  return hatchway_row(s);
end $$;

-- The taker's bind was refused, or it is not wanted any more. args: by
create function hatchway_give_back(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_scaler text;
begin
  perform hatchway_lock();
  v_scaler := hatchway_untake(args->>'by');
  return jsonb_build_object(
    'bound', (select hatchway_row(s) from scaler_spawning_agents s where s.bound_by = args->>'by' limit 1),
    'wake', hatchway_offer(array[v_scaler]));
end $$;

-- A warm agent has become ready. args: scalers
create function hatchway_offer_ready(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  perform hatchway_lock();
  return hatchway_offer(array(select jsonb_array_elements_text(args->'scalers')));
end $$;

-- Asks an agent to go. A warm one that nobody has taken can be taken by nobody from here on: true, it may go now. One
-- with a job hears of it in its heartbeat's answer, and finishes first: false. args: agent_id
create function hatchway_withdraw(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
begin
  update scaler_spawning_agents
     set drain_requested_at = coalesce(drain_requested_at, now()), state_version = state_version + 1
   where agent_id = args->>'agent_id' and state <> 'closing'
  returning * into s;
  return to_jsonb(s.agent_id is null or s.bound_job_id is null);
end $$;

-- The same for idle ones that a pool has too many of: those that are still idle are marked and named. args: agents
create function hatchway_retire_idle(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  told jsonb;
begin
  with marked as (
    update scaler_spawning_agents s
       set drain_requested_at = now(), state_version = state_version + 1
     where s.agent_id in (select jsonb_array_elements_text(args->'agents'))
       and s.warm_key is not null and s.bound_job_id is null and s.state <> 'closing' and s.drain_requested_at is null
    returning s.workflow_id, s.workflow_first_run_id, s.agent_id)
  select jsonb_agg(to_jsonb(marked)) into told from marked;
  return coalesce(told, '[]');
end $$;

-- Makes room for the head of a line that waits for so long already: the oldest idle warm agent in the scope that binds
-- it is marked and named. One at a time: while one is on its way out, its room is on its way in.
-- args: scaler, patience_s, leaving_s
create function hatchway_relieve(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_scaler   text := args->>'scaler';
  v_patience interval := make_interval(secs => (args->>'patience_s')::double precision);
  v_scalers  text[];
  head       scaler_waiters;
  why        jsonb;
  s          scaler_spawning_agents;
begin
  perform hatchway_lock();
  select * into head
    from scaler_waiters
   where scaler_name = v_scaler and not parked
   order by priority, seq, rank
   limit 1;
  if not found then
    return jsonb_build_object('blocked', false);
  end if;
  why := hatchway_bound(v_scaler, head.mcpu, head.mem_bytes);
  if coalesce(why->>'kind', '') <> 'full' then
    return jsonb_build_object('blocked', false);
  end if;
  v_scalers := array(select scaler_name from scaler_capacity
                      where scaler_name is not null
                        and (why->>'scope' = 'global' or why->>'scope' in (scope, pool)));
  if not exists (select from scaler_spawning_agents x
                  where x.scaler_name = any (v_scalers) and x.warm_key is not null and x.bound_job_id is null) then
    return jsonb_build_object('blocked', false);
  end if;
  if head.enqueued_at > now() - v_patience
     or exists (select from scaler_spawning_agents x
                 where x.scaler_name = any (v_scalers) and x.warm_key is not null and x.bound_job_id is null
                   and greatest(x.drain_requested_at, x.closing_at)
                       > now() - make_interval(secs => (args->>'leaving_s')::double precision)) then
    return jsonb_build_object('blocked', true, 'again_in_s',
                              greatest(extract(epoch from head.enqueued_at + v_patience - now()), 1));
  end if;
  select * into s
    from scaler_spawning_agents x
   where x.scaler_name = any (v_scalers) and x.warm_key is not null and x.bound_job_id is null and hatchway_ready(x)
   order by x.adopted_at
   limit 1
     for no key update skip locked;
  if not found then                                     -- those that are being made: they are offered when they are ready
    return jsonb_build_object('blocked', true, 'again_in_s', 2);
  end if;
  update scaler_spawning_agents set drain_requested_at = now(), state_version = state_version + 1
   where agent_id = s.agent_id;
  return jsonb_build_object('blocked', true, 'again_in_s', 1, 'release', jsonb_build_array(jsonb_build_object(
    'workflow_id', s.workflow_id, 'workflow_first_run_id', s.workflow_first_run_id, 'agent_id', s.agent_id)));
end $$;
