-- What the agents' door may do, and all that its role may do: these functions run with the owner's rights, with a
-- fixed search_path, and the role may read no table.

-- The database's revision, for whoever may not read alembic_version.
create function hatchway_revision() returns text
language sql stable security definer set search_path = public, pg_temp as $$
  select version_num from alembic_version $$;

-- The id of the Temporal namespace that the database is tied to; null before `hatchway setup`. For whoever may not read
-- hatchway_installation.
create function hatchway_tied_namespace() returns text
language sql stable security definer set search_path = public, pg_temp as $$
  select namespace_uuid from hatchway_installation $$;

-- Claim and token in one transaction, under the spawn row's lock. The same code with the same nonce gives the same
-- token until the agent has registered: a lost reply costs nothing. Valid until the later of its own expiry and the
-- row's deadline. One code of an agent spends all its codes. args: claim_hash, nonce_hash, token_hash
create function hatchway_redeem(args jsonb) returns jsonb
language plpgsql security definer set search_path = public, pg_temp as $$
declare
  c scaler_pending_claims;
  s scaler_spawning_agents;
begin
  select * into c from scaler_pending_claims where claim_hash = args->>'claim_hash';
  if not found then
    return jsonb_build_object('answer', 'unknown');
  end if;
  select * into s from scaler_spawning_agents where agent_id = c.agent_id and state <> 'closing' for no key update;
  if not found then
    return jsonb_build_object('answer', 'tearing-down', 'agent_id', c.agent_id);
  end if;
  select * into c from scaler_pending_claims where claim_hash = args->>'claim_hash';    -- again, under the lock
  if not found then
    return jsonb_build_object('answer', 'unknown');
  end if;
  if c.consumed_nonce_hash <> args->>'nonce_hash'
     or exists (select from scaler_agent_tokens where agent_id = c.agent_id and registered_at is not null) then
    return jsonb_build_object('answer', 'consumed', 'agent_id', c.agent_id);
  end if;
  if c.consumed_at is null and greatest(c.expires_at, s.deadline_at) <= now() then
    return jsonb_build_object('answer', 'expired', 'agent_id', c.agent_id);
  end if;
  update scaler_pending_claims
     set consumed_at = now(),
         consumed_nonce_hash = case claim_hash when c.claim_hash then args->>'nonce_hash' else 'spent' end
   where agent_id = c.agent_id and consumed_at is null;
  insert into scaler_agent_tokens (token_hash, agent_id, claim_hash, labels, expires_at, orchestrator_url)
  values (args->>'token_hash', c.agent_id, c.claim_hash, c.labels,
          now() + make_interval(secs => c.agent_token_ttl_ms / 1000.0), nullif(c.orchestrator_url, ''))
  on conflict (agent_id) do update
     set token_hash = excluded.token_hash, claim_hash = excluded.claim_hash, expires_at = excluded.expires_at,
         orchestrator_url = excluded.orchestrator_url;
  return jsonb_build_object('answer', 'redeemed', 'agent_id', c.agent_id);
end $$;

-- Null: unknown, or expired before its agent registered. args: token_hash
create function hatchway_token(args jsonb) returns jsonb
language sql stable security definer set search_path = public, pg_temp as $$
  select jsonb_build_object(
           'agent_id', s.agent_id, 'workflow_id', s.workflow_id, 'workflow_first_run_id', s.workflow_first_run_id,
           'state', s.state, 'end_reason', s.end_reason, 'registration_id', s.registration_id,
           'adopted_by', s.adopted_by, 'scaler', s.scaler_name, 'labels', t.labels,
           'job_id', s.bound_job_id, 'run_id', s.run_id)
    from scaler_agent_tokens t
    join scaler_spawning_agents s using (agent_id)
   where t.token_hash = args->>'token_hash'
     and (t.expires_at is null or t.expires_at > now()) $$;

-- A batch of heartbeats. Presence rows are locked in one order by everybody, and only updated, never inserted: an
-- insert could land after the release that deleted the row.
-- args: instance_id, agents [[agent_id, registration_id]], gap_s (after such a silence it counts as heard of anew; null:
-- after any, so that it vouches for nothing)
create function hatchway_beat(args jsonb) returns jsonb
language plpgsql security definer set search_path = public, pg_temp as $$
declare
  v_agents text[] := array(select distinct x->>0 from jsonb_array_elements(args->'agents') x order by 1);
  answer   jsonb;
begin
  perform from scaler_agent_presence where agent_id = any (v_agents) order by agent_id for no key update;
  update scaler_agent_presence p
     set last_seen_at = now(),
         instance_id = args->>'instance_id',
         heard_since = case when p.last_seen_at >= now() - make_interval(secs => (args->>'gap_s')::double precision)
                            then p.heard_since else now() end
    from jsonb_array_elements(args->'agents') x
    join scaler_spawning_agents s on s.agent_id = x->>0 and s.registration_id = x->>1
   where p.agent_id = s.agent_id and s.state <> 'closing';
  select jsonb_agg(jsonb_build_object(
           'agent_id', x->>0,
           'answer', case when s.agent_id is null then 'unknown'
                          when s.state = 'closing' then 'stop'
                          when s.registration_id is distinct from x->>1 then 'other-registration'
                          else 'ok' end,
           'end_reason', s.end_reason,
           -- An idle warm agent that may go is torn down. Asked, it would complete, and pass for one that served.
           'drain', s.drain_requested_at is not null and not hatchway_idle(s),
           'idle', hatchway_idle(s),
           'job_id', case when not hatchway_idle(s) then s.bound_job_id end,
           'run_id', case when not hatchway_idle(s) then s.run_id end))
    into answer
    from jsonb_array_elements(args->'agents') x
    left join scaler_spawning_agents s on s.agent_id = x->>0;
  return coalesce(answer, '[]');
end $$;

-- args: instance_id, kind, version, host_ids, boot_id, silent_s (after such a gap it counts as newly alive)
create function hatchway_instance_beat(args jsonb) returns jsonb
language plpgsql security definer set search_path = public, pg_temp as $$
begin
  insert into scaler_instances as i (instance_id, kind, version, host_ids, boot_id)
  values (args->>'instance_id', args->>'kind', args->>'version',
          array(select jsonb_array_elements_text(args->'host_ids')), args->>'boot_id')
  on conflict (instance_id) do update
     set kind = excluded.kind,
         version = excluded.version,
         host_ids = excluded.host_ids,
         boot_id = excluded.boot_id,
         alive_since = case when i.last_seen_at < now() - make_interval(secs => (args->>'silent_s')::double precision)
                            then now() else i.alive_since end,
         last_seen_at = now();
  return 'true'::jsonb;
end $$;

-- Accepted while the row stands, closing or not: a completion that races with an exit is not lost. The first result
-- stays. args: agent_id, registration_id, result, exit_code
create function hatchway_complete(args jsonb) returns jsonb
language plpgsql security definer set search_path = public, pg_temp as $$
declare
  s scaler_spawning_agents;
  j scaler_agent_jobs;
begin
  select * into s from scaler_spawning_agents where agent_id = args->>'agent_id' for no key update;
  if not found then
    return jsonb_build_object('answer', 'gone');
  elsif s.registration_id is distinct from args->>'registration_id' then
    return jsonb_build_object('answer', 'other-registration');
  end if;
  insert into scaler_agent_jobs as known (agent_id, run_id, job_id, completed_at, result, exit_code)
  values (s.agent_id, s.run_id, case when not hatchway_idle(s) then s.bound_job_id end, now(), args->>'result',
          (args->>'exit_code')::int)
  on conflict (agent_id) do update
     set result = coalesce(known.result, excluded.result),
         exit_code = case when known.completed_at is null then excluded.exit_code else known.exit_code end,
         completed_at = coalesce(known.completed_at, excluded.completed_at)
  returning * into j;
  return jsonb_build_object(
    'answer', 'completed', 'agent_id', s.agent_id, 'workflow_id', s.workflow_id,
    'workflow_first_run_id', s.workflow_first_run_id, 'closing', s.state = 'closing',
    'result', j.result, 'exit_code', j.exit_code, 'row', hatchway_row(s));
end $$;

-- Why an agent is turned away; null when nothing is known of it, or nothing is wrong. args: agent_id
create function hatchway_refusal(args jsonb) returns jsonb
language sql stable security definer set search_path = public, pg_temp as $$
  select coalesce(
    (select jsonb_build_object('kind', 'tearing-down', 'end_reason', end_reason)
       from scaler_spawning_agents where agent_id = args->>'agent_id' and state = 'closing'),
    (select jsonb_build_object('kind', 'ended', 'end_reason', end_reason)
       from scaler_provision_outcomes where agent_id = args->>'agent_id' and closed_at is not null)) $$;
