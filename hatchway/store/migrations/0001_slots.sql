-- Reserve, release and what happens to a slot in between.

-- The end of an agent, written once: the first to decide wins, except that a recorded completion of the agent beats
-- whatever the caller believes (agents complete and exit within milliseconds).
create function hatchway_record_end(p_agent text, p_scaler text, p_job text, p_end_reason text, p_result text,
  p_close boolean, p_teardown text default null) returns scaler_provision_outcomes language plpgsql as $$
declare
  j scaler_agent_jobs;
  o scaler_provision_outcomes;
begin
  select * into j from scaler_agent_jobs where agent_id = p_agent and completed_at is not null;
  if found then
    p_end_reason := 'completed';
    p_result := j.result;
  end if;
  insert into scaler_provision_outcomes as old
    (agent_id, job_id, scaler_name, end_reason, result, decided_at, closed_at, teardown)
  values (p_agent, p_job, p_scaler, p_end_reason, p_result, now(), case when p_close then now() end, p_teardown)
  on conflict (agent_id) do update
     set job_id = coalesce(old.job_id, excluded.job_id),
         scaler_name = coalesce(old.scaler_name, excluded.scaler_name),
         end_reason = case when old.decided_at is null then excluded.end_reason else old.end_reason end,
         result = case when old.decided_at is null then excluded.result else old.result end,
         decided_at = coalesce(old.decided_at, excluded.decided_at),
         closed_at = coalesce(old.closed_at, excluded.closed_at),
         teardown = case when old.closed_at is null then excluded.teardown else old.teardown end,
         updated_at = now()
  returning * into o;
  return o;
end $$;

-- Who else has this job: its live row, or its place in the line. A closing row does not count, its job is free.
create function hatchway_job_holder(p_job text, p_agent text) returns jsonb language plpgsql stable as $$
declare
  s scaler_spawning_agents;
  w scaler_waiters;
begin
  select * into s from scaler_spawning_agents
   where bound_job_id = p_job and state <> 'closing' and agent_id <> p_agent;
  if found then
    return jsonb_build_object('answer', 'job-has-agent', 'agent_id', s.agent_id, 'workflow_id', s.workflow_id,
      'workflow_first_run_id', s.workflow_first_run_id, 'row', hatchway_row(s));
  end if;
  select * into w from scaler_waiters where job_id = p_job and rank = 1 and agent_id <> p_agent;
  if found then
    return jsonb_build_object('answer', 'job-has-agent', 'agent_id', w.agent_id, 'workflow_id', w.workflow_id,
      'workflow_first_run_id', w.spawn->>'workflow_first_run_id', 'row', null);
  end if;
  return null;
end $$;

-- The answer to whoever holds a slot. `older`: closing rows of its job, which may have nobody at them.
-- In plpgsql, which keeps its plans: a function in SQL is planned anew at each call, under the admission lock.
create function hatchway_held(s scaler_spawning_agents, p_resumed boolean, p_wake jsonb, p_older boolean default true)
returns jsonb language plpgsql stable as $$
declare
  older jsonb;
begin
  if p_older then
    select jsonb_agg(hatchway_row(o)) into older
      from scaler_spawning_agents o
     where o.bound_job_id = s.bound_job_id and o.agent_id <> s.agent_id and o.state = 'closing';
  end if;
  return jsonb_build_object('answer', 'held', 'resumed', p_resumed, 'row', hatchway_row(s), 'wake', p_wake,
                            'older', older);
end $$;

-- The outcome of the agent that served this job, as long as it is kept; also while its row still stands.
create function hatchway_job_served(p_job text) returns jsonb language sql stable as $$
  select to_jsonb(o) || jsonb_build_object(
           'result', coalesce(j.result, o.result), 'end_reason', 'completed', 'exit_code', j.exit_code)
    from (select agent_id from scaler_agent_jobs where job_id = p_job and completed_at is not null
          union
          select agent_id from scaler_provision_outcomes
           where job_id = p_job and end_reason = 'completed' and adopted_at is not null) served
    join scaler_provision_outcomes o using (agent_id)
    left join scaler_agent_jobs j using (agent_id)
   order by o.updated_at desc
   limit 1 $$;

-- What each candidate of a request meets, in its order; `line`: it would fit, but others were first.
create function hatchway_bounds(p_candidates jsonb, p_position int) returns jsonb language sql stable as $$
  select jsonb_agg(coalesce(
           hatchway_bound(c->>'scaler', (c->>'mcpu')::bigint, (c->>'mem_bytes')::bigint),
           jsonb_build_object('kind', 'line', 'scope', 'scaler:' || (c->>'scaler'), 'used', p_position - 1))
         order by i)
    from jsonb_array_elements(p_candidates) with ordinality x (c, i) $$;

-- The scalers that would do.
create function hatchway_wanted(args jsonb) returns text[] language sql immutable as $$
  select array(select c->>'scaler' from jsonb_array_elements(args->'candidates') x (c)) $$;

-- Puts an agent in the line, at its old place if it had one.
create function hatchway_enter(args jsonb, p_seq bigint, p_enqueued_at timestamptz) returns void language sql as $$
  insert into scaler_waiters (agent_id, rank, scaler_name, priority, seq, mcpu, mem_bytes, workflow_id, job_id, spawn,
                              config_version, parked, enqueued_at, deadline_at)
  select args->>'agent_id', i, c->>'scaler', (args->>'priority')::int, p_seq, (c->>'mcpu')::bigint,
         (c->>'mem_bytes')::bigint, args->>'workflow_id', args->>'job_id', (args->'spawn') || (c->'spawn'),
         (args->>'config_version')::bigint,
         not hatchway_ever(c->>'scaler', (c->>'mcpu')::bigint, (c->>'mem_bytes')::bigint), p_enqueued_at,
         now() + make_interval(secs => (args->>'wait_timeout_s')::double precision)   -- what is left of it
    from jsonb_array_elements(args->'candidates') with ordinality x (c, i) $$;

-- args: agent_id, workflow_id, job_id, priority, wait, config_version, wait_timeout_s,
--       spawn {run_id, workflow_first_run_id, owner_instance_id, reserved_for_s},
--       takes_warm (any of them), candidates [{scaler, mcpu, mem_bytes, takes_warm, spawn {label_set, mandatory_labels, ...,
--       made_warm}}], best first; warm_target: a warm pool's fill, which has one candidate and does not wait
create function hatchway_reserve(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_agent text := args->>'agent_id';
  v_job   text := args->>'job_id';
  v_wait  boolean := (args->>'wait')::boolean;
  v_lines text[];
  s       scaler_spawning_agents;
  o       scaler_provision_outcomes;
  w       scaler_waiters;
  c       jsonb;
  answer  jsonb;
  seen    record;
begin
  perform hatchway_lock();

  -- Called again: a lost reply, a grant to take up, or a workflow that was reset. The row says where it stands.
  select * into s from scaler_spawning_agents where agent_id = v_agent;
  if found then
    if s.state <> 'granted' then                        -- a repeat: the reply that named whom to wake may be lost
      return hatchway_held(s, true, hatchway_wake(true));
    end if;
    update scaler_spawning_agents
       set state = 'reserved',
           deadline_at = now() + make_interval(secs => (args#>>'{spawn,reserved_for_s}')::double precision),
           state_version = state_version + 1
     where agent_id = v_agent and state = 'granted';    -- a close does not wait for the lock
    select * into s from scaler_spawning_agents where agent_id = v_agent;
    return hatchway_held(s, true, '[]');
  end if;

  -- One look at everything that could speak against a slot: nearly always nothing does, and everybody who waits for
  -- the lock pays for each further statement. Who adopts, completes or closes does not take it: what was seen is looked
  -- at again before it is answered.
  select exists (select from scaler_provision_outcomes where agent_id = v_agent and closed_at is not null) as ended,
         exists (select from scaler_agent_jobs where job_id = v_job and completed_at is not null)
           or exists (select from scaler_provision_outcomes
                       where job_id = v_job and end_reason = 'completed' and adopted_at is not null) as served,
         others.live is true
           or exists (select from scaler_waiters where job_id = v_job and rank = 1 and agent_id <> v_agent) as taken,
         others.bound is true as bound,
         others.closing is true as older,
         exists (select from scaler_waiters where agent_id = v_agent) as waits,
         -- By the index: after a long line has gone, a scan would read its dead rows until a vacuum.
         (select agent_id from scaler_waiters where rank = 1 order by priority, seq limit 1) is null as nobody_waits
    into seen
    from (select bool_or(state <> 'closing') as live, bool_or(state = 'closing') as closing,
                 bool_or(bound_by = v_agent) as bound
            from scaler_spawning_agents
           where bound_job_id = v_job and agent_id <> v_agent) others;
  if seen.ended then
    select * into o from scaler_provision_outcomes where agent_id = v_agent;
    return jsonb_build_object('answer', 'already-ended', 'end_reason', o.end_reason);
  end if;
  if seen.bound or seen.taken then                      -- a warm agent that this provision has taken already
    answer := hatchway_taken(args);
    if answer is not null then
      return answer;
    end if;
    seen.waits := exists (select from scaler_waiters where agent_id = v_agent);   -- it may be back at its place
  end if;
  if seen.served then
    answer := hatchway_job_served(v_job);
    if answer is not null then
      return jsonb_build_object('answer', 'job-served', 'outcome', answer);
    end if;
  end if;
  if seen.taken then
    answer := hatchway_job_holder(v_job, v_agent);
    if answer is not null then
      return answer;
    end if;
  end if;

  if args ? 'warm_target' then
    answer := hatchway_pool_refusal(args);
    if answer is not null then
      return answer;
    end if;
  elsif not seen.waits and (args->>'takes_warm')::boolean then   -- an agent that stands ready is better than a slot
    answer := hatchway_take_ready(args);
    if answer is not null then
      return answer;
    end if;
  end if;

  if seen.waits then
    select * into w from scaler_waiters where agent_id = v_agent order by rank limit 1;
  -- Nobody to be fair to. Whoever waits for scalers out of reach waits for one that is full in itself, or every scaler
  -- that shares the scope is out of reach as well: what this one needs is held by nobody.
  elsif seen.nobody_waits or cardinality(hatchway_reach(hatchway_wanted(args))) = 0 then
    for c in select value from jsonb_array_elements(args->'candidates') loop
      continue when hatchway_bound(c->>'scaler', (c->>'mcpu')::bigint, (c->>'mem_bytes')::bigint) is not null;
      s := hatchway_take('reserved', v_agent, c->>'scaler', (c->>'mcpu')::bigint, (c->>'mem_bytes')::bigint,
                         args->>'workflow_id', v_job, (args->'spawn') || (c->'spawn'),
                         (args->>'config_version')::bigint);
      return hatchway_held(s, false, '[]', seen.older);
    end loop;
    if seen.nobody_waits and not v_wait then
      return jsonb_build_object('answer', 'refused', 'bound', hatchway_bounds(args->'candidates', 1));
    end if;
  end if;

  v_lines := hatchway_wanted(args);
  if seen.waits and (w.config_version is distinct from (args->>'config_version')::bigint
                     or w.spawn ? 'plan_anew') then
    v_lines := v_lines || hatchway_leave(v_agent);
    perform hatchway_enter(args, w.seq, w.enqueued_at);
  end if;
  if not exists (select from jsonb_array_elements(args->'candidates') x (c)
                  where hatchway_ever(x.c->>'scaler', (x.c->>'mcpu')::bigint, (x.c->>'mem_bytes')::bigint)) then
    if seen.waits then
      perform hatchway_pump(v_lines || hatchway_leave(v_agent));
    end if;
    return jsonb_build_object('answer', 'refused', 'bound', hatchway_bounds(args->'candidates', 1),
                              'wake', hatchway_wake());
  end if;
  if not seen.waits then
    perform hatchway_enter(args, nextval('scaler_waiters_seq'), now());
  end if;

  perform hatchway_pump(v_lines);
  update scaler_spawning_agents set state = 'reserved' where agent_id = v_agent and state = 'granted' returning * into s;
  if found then
    return hatchway_held(s, false, hatchway_wake(seen.waits));                -- it may be a repeat, as above
  end if;
  answer := jsonb_build_object('position', hatchway_position(v_agent));
  answer := answer || jsonb_build_object(
    'answer', case when v_wait then 'waiting' else 'refused' end,
    'bound', hatchway_bounds(args->'candidates', (answer->>'position')::int));
  if not v_wait then                                    -- the scopes that it held are open to those behind it
    perform hatchway_pump(v_lines || hatchway_leave(v_agent));
  end if;
  return answer || jsonb_build_object('wake', hatchway_wake(seen.waits));
end $$;

-- Also leaves the line, also fences a reserve that is still on its way; safe to repeat. args: agent_id, end_reason, result,
-- teardown (how the end of the compute is known; the first call's stays),
-- only_granted (the grant or the place of a workflow that is gone: not once a slot was taken up, as its compute may run)
create function hatchway_release(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_agent text := args->>'agent_id';
  s       scaler_spawning_agents;
  w       scaler_waiters;
  o       scaler_provision_outcomes;
  opened  text[];
  existed boolean;
  untaken text;
begin
  perform hatchway_lock();
  untaken := hatchway_untake(v_agent);
  -- The pool that the reservation counts in; the scaler may have moved to another since.
  opened := array(select x.scaler_name from scaler_reservations r
                    join scaler_capacity x on x.pool = 'pool:' || r.machine_pool
                   where r.agent_id = v_agent);
  delete from scaler_spawning_agents
   where agent_id = v_agent and (state = 'granted' or not coalesce((args->>'only_granted')::boolean, false))
  returning * into s;
  existed := found;
  select * into w from scaler_waiters where agent_id = v_agent order by rank limit 1;
  if not existed and w.agent_id is null and (args->>'only_granted')::boolean then
    return jsonb_build_object('existed', untaken is not null, 'wake', hatchway_offer(array[untaken]));
  end if;
  delete from scaler_agent_presence where agent_id = v_agent;
  opened := opened || coalesce(s.scaler_name, '') || hatchway_leave(v_agent);
  o := hatchway_record_end(v_agent, s.scaler_name, coalesce(hatchway_job(s), w.job_id),
                           args->>'end_reason', args->>'result', true, args->>'teardown');
  if existed or w.agent_id is not null then
    perform hatchway_pump(opened);
  end if;
  return jsonb_build_object('existed', existed or (untaken is not null and (args->>'only_granted')::boolean is true),
                            'end_reason', o.end_reason, 'result', o.result, 'adopted_by', o.adopted_by,
                            'wake', hatchway_wake(not existed) || hatchway_offer(array[untaken]));
                                                        -- a repeat: the first reply may be lost
end $$;

-- Before any effect: which host will make it. args: agent_id, host_id, deadline_s (of this attempt, or null)
create function hatchway_stamp_host(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
  v_again boolean;                                      -- an earlier attempt has stamped it, and may have had its effect
begin
  select host_id is not null into v_again
    from scaler_spawning_agents
   where agent_id = args->>'agent_id'
     for update;
  update scaler_spawning_agents
     set host_id = args->>'host_id',
         deadline_at = case when adopted_by is not null or args->>'deadline_s' is null then deadline_at
                            else now() + make_interval(secs => (args->>'deadline_s')::double precision) end,
         state_version = state_version + 1
   where agent_id = args->>'agent_id'
     and closing_at is null
     and (host_id is null or host_id = args->>'host_id')
  returning * into s;
  if found then
    return jsonb_build_object('answer', 'stamped', 'row', hatchway_row(s), 'again', v_again);
  end if;
  select * into s from scaler_spawning_agents where agent_id = args->>'agent_id';
  if not found then
    return jsonb_build_object('answer', 'no-row');
  elsif s.state = 'closing' then
    return jsonb_build_object('answer', 'closing', 'end_reason', s.end_reason);
  end if;
  return jsonb_build_object('answer', 'bound-to-host', 'host_id', s.host_id);
end $$;

-- Before any effect on a container engine, or in a cloud's region: which one. An operator's host id may come to mean
-- another, and what that one does not have is not gone. Answers the engine that the first attempt named, or null: no effect. args: agent_id, engine
create function hatchway_stamp_engine(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
begin
  update scaler_spawning_agents
     set engine = coalesce(engine, args->>'engine'),
         state_version = state_version + 1
   where agent_id = args->>'agent_id' and closing_at is null
  returning * into s;
  return case when found then to_jsonb(s.engine) end;
end $$;

-- The backend said yes. An adoption may have been quicker. args: agent_id, compute, adoption_timeout_s
create function hatchway_confirm_spawned(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
begin
  update scaler_spawning_agents
     set compute = args->'compute',
         state = case when state = 'active' then state else 'spawned' end,
         deadline_at = case when state = 'active' then deadline_at
                            else now() + make_interval(secs => (args->>'adoption_timeout_s')::double precision) end,
         state_version = state_version + 1
   where agent_id = args->>'agent_id' and state <> 'closing'
  returning * into s;
  return case when found then hatchway_row(s) end;
end $$;

-- The agent hears of it in its next heartbeat's answer. args: agent_id
create function hatchway_request_drain(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  update scaler_spawning_agents
     set drain_requested_at = coalesce(drain_requested_at, now()), state_version = state_version + 1
   where agent_id = args->>'agent_id' and state <> 'closing';
  return to_jsonb(found);
end $$;
