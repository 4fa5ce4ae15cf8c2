-- The installation: a copy of the database becomes one of its own, and rows that were lost are written again.

-- The original's agents are not this installation's: with another id it cannot find their compute, so their rows would
-- never end. args: namespace_uuid
create function hatchway_forget_original(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_batch int := (args->>'batch')::int;
  v_gone  int;
begin
  perform hatchway_lock();
  if exists (select from hatchway_installation where namespace_uuid = args->>'namespace_uuid') then
    return '0';                                         -- it is that namespace's own already: these are its own agents
  end if;
  delete from scaler_waiters where agent_id in (select agent_id from scaler_waiters order by agent_id limit v_batch);
  get diagnostics v_gone = row_count;
  if v_gone = 0 then                                    -- once nobody waits, what is freed is handed to nobody
    delete from scaler_spawning_agents where agent_id in (
      select agent_id from scaler_spawning_agents order by agent_id limit v_batch);
    get diagnostics v_gone = row_count;
  end if;
  if v_gone = 0 then
    delete from scaler_agent_presence where agent_id in (
      select agent_id from scaler_agent_presence order by agent_id limit v_batch);
    get diagnostics v_gone = row_count;
  end if;
  return to_jsonb(v_gone);
end $$;

-- What is left, which after hatchway_forget_original is next to nothing, and the tie. args: namespace_uuid
create function hatchway_become_another(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  perform hatchway_lock();
  update hatchway_installation
     set installation_id = gen_random_uuid(), namespace_uuid = args->>'namespace_uuid', tied_at = now()
   where namespace_uuid is distinct from args->>'namespace_uuid';
  if not found then
    return 'false'::jsonb;
  end if;
  delete from scaler_waiters;
  delete from scaler_spawning_agents;
  delete from scaler_agent_presence;
  delete from scaler_instances;
  return 'true'::jsonb;
end $$;

-- Compute stands and its workflow is open, but its row is lost, as by a restored backup: written again, counted by every
-- cap and held back by none, because it is there already. Never for an agent whose end is on record: its workflow may
-- just be about to close. It is nobody's warm agent any more, as whether it has a job is lost too.
-- args: agent_id, scaler, workflow_id, workflow_first_run_id, job_id, mcpu, mem_bytes, config_version, host_id, compute,
--       adopted_by (or null), deadline_at (of its adoption; null: as `spawn` says), spawn: as for hatchway_take
create function hatchway_restore_row(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_agent text := args->>'agent_id';
  s       scaler_spawning_agents;
begin
  perform hatchway_lock();
  if exists (select from scaler_spawning_agents where agent_id = v_agent) then
    return '"there"';
  elsif exists (select from scaler_provision_outcomes where agent_id = v_agent and closed_at is not null) then
    return '"ended"';
  elsif not exists (select from scaler_capacity where scaler_name = args->>'scaler') then
    return '"no-such-scaler"';
  elsif exists (select from scaler_spawning_agents
                 where bound_job_id = args->>'job_id' and state <> 'closing')
     or exists (select from scaler_waiters where job_id = args->>'job_id' and agent_id <> v_agent) then
    return '"job-has-agent"';                           -- one that waits would get its slot, and there is one already
  end if;
  delete from scaler_waiters where agent_id = v_agent;  -- of the backup: by now it has what it waited for
  s := hatchway_take(case when args->>'adopted_by' is null then 'spawned' else 'active' end,
                     v_agent, args->>'scaler', (args->>'mcpu')::bigint, (args->>'mem_bytes')::bigint,
                     args->>'workflow_id', args->>'job_id', args->'spawn', (args->>'config_version')::bigint);
  update scaler_spawning_agents
     set host_id = args->>'host_id',
         engine = args->'compute'->>'engine',
         compute = args->'compute',
         adopted_by = args->>'adopted_by',
         adopted_at = case when args->>'adopted_by' is not null then now() end,   -- since when it is known to be silent
         deadline_at = case when args->>'adopted_by' is null
                            then greatest(coalesce((args->>'deadline_at')::timestamptz, s.deadline_at), now()) end
   where agent_id = v_agent;
  if args->>'adopted_by' is not null then
    insert into scaler_provision_outcomes (agent_id, job_id, scaler_name, adopted_by, adopted_at)
    values (v_agent, args->>'job_id', s.scaler_name, args->>'adopted_by', now())
    on conflict (agent_id) do nothing;
  end if;
  return '"restored"';
end $$;

-- An agent has registered, and its row does not know of that, as in a restored backup: both the registration and the
-- token are written again, as its workflow remembers them. The claim that the token was given for is spent.
-- args: agent_id, instance_id, registration_id, token_hash, labels, silent_s
create function hatchway_restore_adoption(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_agent text := args->>'agent_id';
begin
  perform from scaler_spawning_agents
    where agent_id = v_agent and state <> 'closing'
      and (adopted_by is null or registration_id = args->>'registration_id')
      for no key update;
  if not found then
    return 'false'::jsonb;
  end if;
  delete from scaler_pending_claims where agent_id = v_agent;
  insert into scaler_agent_tokens as t (token_hash, agent_id, claim_hash, labels, registered_at)
  values (args->>'token_hash', v_agent, 'restored', args->'labels', now())
  on conflict (agent_id) do update
     set token_hash = excluded.token_hash, registered_at = coalesce(t.registered_at, now()), expires_at = null;
  return to_jsonb(hatchway_adopt(args)->>'answer' = 'adopted');
end $$;
