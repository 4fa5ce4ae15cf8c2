-- The installation: a copy of the database becomes one of its own, and rows that were lost are written again.

-- The original's agents are not this installation's: with another id it cannot find their compute, so their rows would
-- never end. args: namespace_uuid
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
