-- What the reaper reads and the one thing that it writes. Who reads decides nothing: between a read and a condemnation
-- an agent may have been heard of, so the condemnation looks again, under the locks that a heartbeat and an adoption
-- need too.

-- Rows that nobody has ever seen to in this installation.
create index scaler_spawning_agents_unknown on scaler_spawning_agents (agent_id)
  where owner_instance_id is null and adopted_by is null and workflow_id is null;

-- Since when a gateway has been alive without a gap, of those that are alive now the longest; null: none is. An infinite
-- time, which only a hand writes, would make one that is gone a witness for ever.
-- args: silent_s (one that has not been heard of for so long is not alive)
create function hatchway_gateway_since(args jsonb) returns timestamptz language sql stable as $$
  select min(alive_since)
    from scaler_instances
   where kind = 'gateway'
     and last_seen_at > now() - make_interval(secs => (args->>'silent_s')::double precision)
     and isfinite(last_seen_at) and isfinite(alive_since) $$;

-- By which URL these agents find a gateway, for those of whom that is known. args: agents
create function hatchway_urls(args jsonb) returns jsonb
language sql stable set search_path = public, pg_temp as $$
  select coalesce(jsonb_object_agg(agent_id, orchestrator_url), '{}')
    from scaler_agent_tokens
   where agent_id in (select jsonb_array_elements_text(args->'agents'))
     and orchestrator_url is not null $$;

-- On which of these ways there has been somewhere to go for the flap grace, and since when: an agent that came the same
-- way is heard of at a gateway that is alive, and has been without a gap. The first such agent is enough. A way that is
-- not in the answer led nobody anywhere, for all that is known. A way is more than its URL: the same one may lead
-- elsewhere from another host, or to nothing from another scaler's networks.
-- args: ways [{scaler, host_id, orchestrator_url}], agent_timeout_s (within which an agent was heard of), silent_s,
-- flap_grace_s
create function hatchway_reached(args jsonb) returns jsonb
language sql stable set search_path = public, pg_temp as $$
  select coalesce(jsonb_agg(jsonb_build_object('way', w.way, 'since', reached.since)), '[]')
    from (select distinct way from jsonb_array_elements(args->'ways') way) w
   cross join lateral (
      select greatest(i.alive_since, p.heard_since) since
        from scaler_spawning_agents s
        join scaler_agent_tokens t using (agent_id)
        join scaler_agent_presence p using (agent_id)
        join scaler_instances i on i.instance_id = p.instance_id
       where s.scaler_name = w.way->>'scaler'
         and s.host_id = w.way->>'host_id'
         and t.orchestrator_url = w.way->>'orchestrator_url'
         and p.last_seen_at > now() - make_interval(secs => (args->>'agent_timeout_s')::double precision)
         and isfinite(p.last_seen_at) and isfinite(p.heard_since)
         and i.kind = 'gateway'
         and i.last_seen_at > now() - make_interval(secs => (args->>'silent_s')::double precision)
         and isfinite(i.last_seen_at) and isfinite(i.alive_since)
         and greatest(i.alive_since, p.heard_since)
             <= now() - make_interval(secs => (args->>'flap_grace_s')::double precision)
       limit 1) reached $$;

-- The next agents in the order of their ids, `walk` of them at most, and of those the ones that a reaper may have
-- something to say about. `next`: where to go on, null at the end. args: after, walk, flap_grace_s, silent_s
create function hatchway_reap_page(args jsonb) returns jsonb
language plpgsql stable set search_path = public, pg_temp as $$
declare
  v_grace interval := make_interval(secs => (args->>'flap_grace_s')::double precision);
  v_walk  int := (args->>'walk')::int;
  answer  jsonb;
begin
  -- The limits keep each look-up an index probe: joined, the planner would rather read the whole table for each page.
  with walked as materialized (
    select * from scaler_spawning_agents where agent_id > args->>'after' order by agent_id limit v_walk)
  select jsonb_build_object(
           'now', now(),
           'gateway_since', hatchway_gateway_since(args),
           'next', case when count(*) = v_walk then max(s.agent_id) end,
           'candidates', coalesce(jsonb_agg(jsonb_build_object(
               'row', to_jsonb(s) || jsonb_build_object('read_at', now()),
               'last_seen_at', p.last_seen_at,
               'gateway_seen_at', (select i.last_seen_at from scaler_instances i
                                    where i.instance_id = coalesce(p.instance_id, s.adopted_by)),
               'completed', j.agent_id is not null,
               'condemned', s.state = 'closing' and exists (
                  select from scaler_provision_outcomes o
                   where o.agent_id = s.agent_id and o.condemned_at is not null)) order by s.agent_id)
             filter (where s.state = 'closing'
                        or (s.adopted_by is null
                            and (s.spawned_at <= now() - v_grace or s.deadline_at < now() - v_grace))
                        or (s.adopted_by is not null
                            and (j.agent_id is not null
                                 or coalesce(p.last_seen_at, s.adopted_at, s.spawned_at) <= now() - v_grace))), '[]'))
    into answer
    from walked s
    left join lateral (
      select instance_id, last_seen_at from scaler_agent_presence where agent_id = s.agent_id limit 1) p on true
    left join lateral (
      select agent_id from scaler_agent_jobs where agent_id = s.agent_id and completed_at is not null limit 1) j on true;
  return answer;
end $$;

-- Sets agents closing on facts that are still true: each row is as it was read, and who has registered has still not been
-- heard of for `absent_s`, while a gateway was there to hear it. Of a deserted one the gateway is still silent, and the
-- way still leads to another. Answers the rows of those; the others are left to the next pass. The presence row is locked
-- too, which keeps the next heartbeat waiting: by the version alone, agents were condemned between two heartbeats. Nobody
-- is waited for: who has a row locked is about to tell something of its agent.
-- Row order: spawn, claim, presence. args: agents [{agent_id, state_version, end_reason, absent_s, deserted, way}],
-- flap_grace_s, silent_s, agent_timeout_s
create function hatchway_condemn(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_grace   interval := make_interval(secs => (args->>'flap_grace_s')::double precision);
  v_silent  interval := make_interval(secs => (args->>'silent_s')::double precision);
  v_sees    boolean := coalesce(hatchway_gateway_since(args) <= now() - v_grace, false);
  v_ways    jsonb := jsonb_path_query_array(args, '$.agents[*] ? (@.deserted == true).way');
  v_reached jsonb := '[]';
  c         record;
  s         scaler_spawning_agents;
  p         scaler_agent_presence;
  condemned jsonb := '[]';
begin
  if v_ways <> '[]' then
    select coalesce(jsonb_agg(r->'way'), '[]') into v_reached
      from jsonb_array_elements(hatchway_reached(args || jsonb_build_object('ways', v_ways))) r;
  end if;
  for c in
    select *
      from jsonb_to_recordset(args->'agents')
           x (agent_id text, state_version bigint, end_reason text, absent_s double precision, deserted boolean,
              way jsonb)
     order by agent_id
  loop
    select * into s
      from scaler_spawning_agents
     where agent_id = c.agent_id and state_version = c.state_version and state <> 'closing'
       for no key update skip locked;
    continue when not found;
    if s.adopted_by is not null then
      continue when not v_sees;
      select * into p from scaler_agent_presence where agent_id = s.agent_id for no key update skip locked;
      continue when not found and exists (select from scaler_agent_presence where agent_id = s.agent_id);
      continue when coalesce(p.last_seen_at, s.adopted_at, s.spawned_at) > now() - make_interval(secs => c.absent_s);
      continue when c.deserted
                and (not v_reached @> jsonb_build_array(c.way)
                     or exists (select from scaler_instances i
                                 where i.instance_id = coalesce(p.instance_id, s.adopted_by)
                                   and i.last_seen_at > now() - greatest(v_grace, v_silent)));
    end if;
    update scaler_spawning_agents
       set state = 'closing', end_reason = c.end_reason, closing_at = now(), state_version = state_version + 1
     where agent_id = s.agent_id
    returning * into s;
    delete from scaler_pending_claims where agent_id = s.agent_id;
    insert into scaler_provision_outcomes as o (agent_id, job_id, scaler_name, condemned_reason, condemned_at)
    values (s.agent_id, hatchway_job(s), s.scaler_name, s.end_reason, now())
    on conflict (agent_id) do update
       set condemned_reason = excluded.condemned_reason, condemned_at = excluded.condemned_at, updated_at = now();
    condemned := condemned || hatchway_row(s);
  end loop;
  return condemned;
end $$;
