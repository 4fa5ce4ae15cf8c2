-- What is spent is deleted, a batch at a time, oldest first. Whatever stands in the way of one kind stops no other: each
-- is a statement of its own. Nothing that a row, a waiter or an agent still needs is touched, however old it is.

-- For the purge of agents that completed; immutable, so a completion stays a heap-only update.
create index scaler_agent_jobs_correlated on scaler_agent_jobs (correlated_at);

-- Deletes at most `batch` of a kind that were spent for longer than `older_than_s`, and answers how many.
-- args: kind, older_than_s, batch
create function hatchway_purge(args jsonb) returns jsonb
language plpgsql set search_path = public, pg_temp as $$
declare
  v_before timestamptz := now() - make_interval(secs => (args->>'older_than_s')::double precision);
  v_batch  int := (args->>'batch')::int;
  purged   int;
begin
  case args->>'kind'
  when 'claims' then                                    -- a claim is good until the later of its own expiry and its row's
    delete from scaler_pending_claims where claim_hash in (
      select c.claim_hash
        from scaler_pending_claims c
        join scaler_spawning_agents s using (agent_id)
       where c.expires_at < v_before and (s.deadline_at is null or s.deadline_at < v_before)
       order by c.expires_at
       limit v_batch
         for update of c skip locked);
  when 'tokens' then                                    -- only those whose agent never registered expire
    delete from scaler_agent_tokens where token_hash in (
      select token_hash
        from scaler_agent_tokens
       where expires_at < v_before and registered_at is null
       order by expires_at
       limit v_batch
         for update skip locked);
  when 'outcomes' then
    delete from scaler_provision_outcomes where agent_id in (
      select o.agent_id
        from scaler_provision_outcomes o
       where o.updated_at < v_before
         and not exists (select from scaler_spawning_agents s where s.agent_id = o.agent_id)
         and not exists (select from scaler_waiters w where w.agent_id = o.agent_id)
       order by o.updated_at
       limit v_batch
         for update skip locked);
  when 'jobs' then                                      -- a job that was served is not served again while this is kept
    delete from scaler_agent_jobs where agent_id in (
      select j.agent_id
        from scaler_agent_jobs j
       where j.correlated_at < v_before and coalesce(j.completed_at, j.correlated_at) < v_before
         and not exists (select from scaler_spawning_agents s where s.agent_id = j.agent_id)
       order by j.correlated_at
       limit v_batch
         for update skip locked);
  when 'presence' then
    delete from scaler_agent_presence where agent_id in (
      select p.agent_id
        from scaler_agent_presence p
       where p.last_seen_at < v_before
         and not exists (select from scaler_spawning_agents s where s.agent_id = p.agent_id)
       limit v_batch
         for update skip locked);
  when 'instances' then
    delete from scaler_instances where instance_id in (
      select i.instance_id
        from scaler_instances i
       where i.last_seen_at < v_before
         and not exists (select from scaler_spawning_agents s where s.adopted_by = i.instance_id)
         and not exists (select from scaler_agent_presence p where p.instance_id = i.instance_id)
       limit v_batch
         for update skip locked);
  else
    raise exception 'nothing of this kind is purged: %', args->>'kind' using errcode = '22023';
  end case;
  get diagnostics purged = row_count;
  return to_jsonb(purged);
end $$;
