-- The gateway's role, where the migrating user may make one. It logs in through a user that is granted it.
do $$
begin
  if exists (select from pg_roles where rolname = 'hatchway_gateway') then
    null;
  elsif exists (select from pg_roles where rolname = current_user and (rolsuper or rolcreaterole)) then
    begin
      create role hatchway_gateway nologin;
    exception when duplicate_object or unique_violation then    -- another database of this server, at this moment
      null;
    end;
  else
    raise notice 'role hatchway_gateway was not made: % may not create roles', current_user;
  end if;
end $$;

do $$
declare
  f    regprocedure;
  door text[] := array['hatchway_call', 'hatchway_revision', 'hatchway_redeem', 'hatchway_token', 'hatchway_beat',
                       'hatchway_instance_beat', 'hatchway_complete', 'hatchway_refusal', 'hatchway_tied_namespace'];
begin
  for f in
    select oid from pg_proc where proname like 'hatchway\_%' and pronamespace = 'public'::regnamespace
  loop
    execute format('revoke all on routine %s from public', f);
  end loop;
  if exists (select from pg_roles where rolname = 'hatchway_gateway') then
    grant usage on schema public to hatchway_gateway;
    for f in
      select oid from pg_proc where proname = any (door) and pronamespace = 'public'::regnamespace
    loop
      execute format('grant execute on routine %s to hatchway_gateway', f);
    end loop;
  end if;
end $$;
