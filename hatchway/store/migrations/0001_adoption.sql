-- The referee: adopt and close exclude each other on the spawn row, without the admission lock.
-- Rows are locked in one order by everybody: spawn row, claim, token, presence.

-- Another registration may take over only when both the agent and the gateway that adopted it have been silent.
-- args: agent_id, instance_id, registration_id, silent_s, lifetime_s (null: no end)
create function hatchway_adopt(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_agent  text := args->>'agent_id';
  v_silent interval := make_interval(secs => (args->>'silent_s')::double precision);
  s        scaler_spawning_agents;
begin
  update scaler_spawning_agents a
     set adopted_by = args->>'instance_id',
         adopted_at = coalesce(a.adopted_at, now()),
         registration_id = args->>'registration_id',
         state = 'active',
         deadline_at = case when a.adopted_by is null
                            then now() + make_interval(secs => (args->>'lifetime_s')::double precision)
                            else a.deadline_at end,
         state_version = a.state_version + 1
   where a.agent_id = v_agent
     and a.state <> 'closing'
     and (a.adopted_by is null
          or a.registration_id = args->>'registration_id'
          or (not exists (select from scaler_instances i
                           where i.instance_id = a.adopted_by and i.last_seen_at > now() - v_silent)
              and not exists (select from scaler_agent_presence p
                               where p.agent_id = a.agent_id and p.last_seen_at > now() - v_silent)))
  returning * into s;
  if not found then
    select * into s from scaler_spawning_agents where agent_id = v_agent;
    return case
      when not found then jsonb_build_object('answer', 'no-such-provision')
      when s.state = 'closing' then jsonb_build_object('answer', 'tearing-down', 'end_reason', s.end_reason)
      else jsonb_build_object('answer', 'adopted-by-other', 'instance_id', s.adopted_by) end;
  end if;

  insert into scaler_provision_outcomes as o (agent_id, job_id, scaler_name, adopted_by, adopted_at)
  values (v_agent, hatchway_job(s), s.scaler_name, s.adopted_by, s.adopted_at)
  on conflict (agent_id) do update
     set adopted_by = excluded.adopted_by,
         adopted_at = coalesce(o.adopted_at, excluded.adopted_at),
         updated_at = now();
  if s.bound_job_id is not null and hatchway_job(s) is not null then
    insert into scaler_agent_jobs (agent_id, run_id, job_id)
    values (v_agent, s.run_id, s.bound_job_id)
    on conflict (agent_id) do nothing;
  end if;
  perform hatchway_register_token(v_agent);
  insert into scaler_agent_presence (agent_id, instance_id)
  values (v_agent, s.adopted_by)
  on conflict (agent_id) do update set instance_id = excluded.instance_id, last_seen_at = now(), heard_since = now();
  update scaler_failures set consecutive = 0, backoff_until = null
   where scaler_name = s.scaler_name and (consecutive > 0 or backoff_until is not null);
  return jsonb_build_object('answer', 'adopted', 'row', hatchway_row(s));
end $$;

-- From registration on the token lives as long as its row: a long job never dies of its token's age.
create function hatchway_register_token(p_agent text) returns void language plpgsql as $$
begin
  update scaler_agent_tokens set registered_at = coalesce(registered_at, now()), expires_at = null
   where agent_id = p_agent;
end $$;

-- The first step of every teardown. The first reason stays. The claims go; the token stays until release, so that the
-- agent can be told. args: agent_id, end_reason, only_unadopted (a deadline's close loses against an adoption)
create function hatchway_close(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
  o scaler_provision_outcomes;
begin
  update scaler_spawning_agents
     set state = 'closing', end_reason = args->>'end_reason', closing_at = now(), state_version = state_version + 1
   where agent_id = args->>'agent_id'
     and state <> 'closing'
     and (adopted_by is null or not (args->>'only_unadopted')::boolean)
  returning * into s;
  if found then
    delete from scaler_pending_claims where agent_id = s.agent_id;
    return jsonb_build_object('answer', 'closing', 'row', hatchway_row(s), 'end_reason', s.end_reason);
  end if;
  select * into s from scaler_spawning_agents where agent_id = args->>'agent_id';
  if not found then
    select * into o from scaler_provision_outcomes where agent_id = args->>'agent_id';
    return jsonb_build_object('answer', 'gone', 'row', null, 'end_reason', o.end_reason,
                              'released', o.closed_at is not null and o.teardown is not null, 'teardown', o.teardown);
  end if;
  return jsonb_build_object('answer', case s.state when 'closing' then 'closing' else 'adopted' end,
                            'row', hatchway_row(s), 'end_reason', s.end_reason);
end $$;

-- args: agent_id, end_reason, result. Answers what was decided, which an earlier call may have done.
create function hatchway_decide(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
begin
  select * into s from scaler_spawning_agents where agent_id = args->>'agent_id';
  return to_jsonb(hatchway_record_end(args->>'agent_id', s.scaler_name, hatchway_job(s),
                                      args->>'end_reason', args->>'result', false));
end $$;

-- A claim for a row that still wants an agent. Locks the row against a close that would leave this claim behind.
-- args: agent_id, scaler, labels, claim_hash, claim_prefix, ttl_s, agent_token_ttl_ms, orchestrator_url
create function hatchway_mint(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
begin
  perform from scaler_spawning_agents
    where agent_id = args->>'agent_id' and state <> 'closing'
      for no key update;
  if not found then
    return 'false'::jsonb;
  end if;
  insert into scaler_pending_claims
    (claim_hash, claim_prefix, agent_id, scaler_name, labels, agent_token_ttl_ms, orchestrator_url, expires_at)
  values
    (args->>'claim_hash', args->>'claim_prefix', args->>'agent_id', args->>'scaler', args->'labels',
     (args->>'agent_token_ttl_ms')::bigint, args->>'orchestrator_url',
     now() + make_interval(secs => (args->>'ttl_s')::double precision))
  on conflict (claim_hash) do nothing;
  return 'true'::jsonb;
end $$;
