-- The facts that cross workflows. Everything is in `public`; every age and expiry is judged by this server's clock.

create table hatchway_installation (
  installation_id uuid not null default gen_random_uuid(),
  created_at      timestamptz not null default now(),
  namespace_uuid  text,                                 -- the Temporal namespace that this database belongs to
  tied_at         timestamptz,
  check ((namespace_uuid is null) = (tied_at is null))
);
create unique index hatchway_installation_is_one_row on hatchway_installation ((true));
insert into hatchway_installation default values;

-- One row a scope. Caps are written by config apply only, use by the trigger on reservations only; null = no cap.
-- The rows are hot: a low fill factor keeps their updates on one page.
create table scaler_capacity (
  scope         text primary key,                       -- global | pool:<name> | scaler:<name>
  scaler_name   text unique,                            -- scaler rows only
  pool          text,                                   -- scaler rows only: pool:<name> or null
  max_agents    bigint,
  max_mcpu      bigint,
  max_mem_bytes bigint,
  agents        bigint not null default 0 check (agents >= 0),
  mcpu          bigint not null default 0 check (mcpu >= 0),
  mem_bytes     bigint not null default 0 check (mem_bytes >= 0),
  accepting     boolean not null default true,          -- false: draining or retired
  retired       boolean not null default false,         -- left the config; comes back with it, a drain does not
  drained_at    timestamptz,                            -- when an operator stopped it, and who that was
  drained_by    text,
  check (not (retired and accepting)),
  check ((scaler_name is not null) = (scope like 'scaler:%'))
) with (fillfactor = 20);
insert into scaler_capacity (scope) values ('global');

create table scaler_failures (
  scaler_name    text primary key,
  consecutive    int not null default 0,
  counted_from   timestamptz,
  backoff_until  timestamptz,
  last_agent_id  text,
  last_code      text,
  last_message   text,
  last_failed_at timestamptz
);

create table scaler_config_versions (
  version    bigint primary key,
  parent     bigint references scaler_config_versions,
  source     text not null,
  content    jsonb not null,
  sha256     text not null,
  applied_by text not null,
  note       text,
  applied_at timestamptz not null default now()
);

-- The slot of an agent. Committed before anything is spawned, deleted after the compute is known to be gone.
create table scaler_spawning_agents (
  agent_id              text primary key,
  scaler_name           text not null,
  label_set             jsonb not null default '[]',
  run_id                text,
  job_id                text,                           -- the job that it was made for
  bound_job_id          text,                           -- the only job that it may run; null while warm
  spawned_at            timestamptz not null default now(),
  owner_instance_id     text,                           -- null = unknown, never "someone else's"
  adopted_by            text,
  adopted_at            timestamptz,
  mandatory_labels      jsonb not null default '[]',
  provisioning_targets  jsonb not null default '[]',
  roles                 jsonb not null default '[]',
  backend_type          text,
  workflow_id           text,
  workflow_first_run_id text,
  host_id               text,
  engine                text,                           -- the container engine's own id, before anything is made on it
  compute               jsonb,
  state                 text not null check (state in ('granted', 'reserved', 'spawned', 'active', 'closing')),
  deadline_at           timestamptz,
  closing_at            timestamptz,
  end_reason            text,
  registration_id       text,
  drain_requested_at    timestamptz,
  notified_at           timestamptz,                    -- when somebody was last told to signal this grant
  warm_key              text,                           -- what it was made as, ahead of jobs; null: made for a request
  bound_by              text,                           -- the provision that has taken it for its job
  bound_workflow_id     text,
  bound_first_run_id    text,
  taken_at              timestamptz,                    -- when that was
  taken_from            jsonb,                          -- the taker's place in the line, should it have to go back
  bound_at              timestamptz,                    -- when its workflow took the job on: from then on it runs it
  config_version        bigint,
  state_version         bigint not null default 1,
  constraint closing_at_says_closing check ((closing_at is not null) = (state = 'closing')),
  constraint only_warm_agents_are_taken check (
    (bound_by is null) = (taken_at is null)
    and (bound_by is null or (warm_key is not null and bound_job_id is not null))
    and (bound_at is null or bound_by is not null))
) with (fillfactor = 80);
create index scaler_spawning_agents_scaler on scaler_spawning_agents (scaler_name);
create index scaler_spawning_agents_host on scaler_spawning_agents (host_id) where host_id is not null;
create index scaler_spawning_agents_job on scaler_spawning_agents (bound_job_id) where bound_job_id is not null;
create unique index one_live_agent_a_job on scaler_spawning_agents (bound_job_id)
  where bound_job_id is not null and state <> 'closing';
create index scaler_spawning_agents_bound_by on scaler_spawning_agents (bound_by) where bound_by is not null;
create index scaler_spawning_agents_warm on scaler_spawning_agents (scaler_name, warm_key, adopted_at)
  where warm_key is not null and bound_job_id is null;
create index grants_not_taken_up on scaler_spawning_agents (spawned_at) where state = 'granted';

create table scaler_reservations (
  agent_id          text primary key references scaler_spawning_agents on delete cascade,
  scaler_name       text not null,
  cpu_units         double precision not null,
  mcpu              bigint generated always as ((cpu_units * 1000)::bigint) stored,
  mem_bytes         bigint not null,
  machine_pool      text,
  reserved_at       timestamptz not null default now(),
  owner_instance_id text
);
create index scaler_reservations_scaler on scaler_reservations (scaler_name);

-- No foreign key: a completion outlives its row, it says that the job was served.
create table scaler_agent_jobs (
  agent_id      text primary key,
  run_id        text,
  job_id        text,
  correlated_at timestamptz not null default now(),
  completed_at  timestamptz,
  result        text,
  exit_code     int,
  check ((completed_at is null) = (result is null))
);
create index scaler_agent_jobs_job on scaler_agent_jobs (job_id) where job_id is not null;

-- The line: one row for each candidate of each waiter; rank 1 is the one that it would like best.
create sequence scaler_waiters_seq;
create table scaler_waiters (
  agent_id       text not null,
  rank           int not null,
  scaler_name    text not null,
  priority       int not null,                          -- 1 first
  seq            bigint not null,
  mcpu           bigint not null check (mcpu >= 0),
  mem_bytes      bigint not null check (mem_bytes >= 0),
  workflow_id    text not null,
  job_id         text,
  spawn          jsonb not null,                        -- what the spawn row gets when the slot is granted
  config_version bigint,
  parked         boolean not null default false,        -- no empty scope could hold it, under the caps of now
  enqueued_at    timestamptz not null default now(),
  deadline_at    timestamptz,
  told_at        timestamptz,                           -- when somebody was last told to have it planned anew
  primary key (agent_id, rank)
) with (fillfactor = 80);
create unique index one_waiter_a_job on scaler_waiters (job_id) where rank = 1 and job_id is not null;
create unique index scaler_waiters_line on scaler_waiters (scaler_name, priority, seq, rank) where not parked;
create index scaler_waiters_order on scaler_waiters (priority, seq) where rank = 1;

create table scaler_provision_outcomes (
  agent_id         text primary key,
  job_id           text,
  scaler_name      text,
  result           text,
  decided_at       timestamptz,
  adopted_by       text,
  adopted_at       timestamptz,
  condemned_reason text,
  condemned_at     timestamptz,
  closed_at        timestamptz,
  teardown         text,                                -- how the end of the compute is known; null: not said
  end_reason       text,
  recorded_at      timestamptz not null default now(),
  updated_at       timestamptz not null default now()
);
create index scaler_provision_outcomes_job on scaler_provision_outcomes (job_id) where job_id is not null;
create index scaler_provision_outcomes_updated on scaler_provision_outcomes (updated_at);

create table scaler_pending_claims (
  claim_hash          text primary key,
  claim_prefix        text not null,
  agent_id            text not null references scaler_spawning_agents on delete cascade,
  scaler_name         text not null,
  labels              jsonb not null default '[]',
  agent_token_ttl_ms  bigint not null,
  orchestrator_url    text not null default '',
  expires_at          timestamptz not null,
  consumed_at         timestamptz,
  consumed_nonce_hash text,
  created_at          timestamptz not null default now(),
  check ((consumed_at is null) = (consumed_nonce_hash is null))
);
create index scaler_pending_claims_agent on scaler_pending_claims (agent_id);
create index scaler_pending_claims_expires on scaler_pending_claims (expires_at);

create table scaler_agent_tokens (
  token_hash       text primary key,
  agent_id         text not null unique references scaler_spawning_agents on delete cascade,
  claim_hash       text not null,
  labels           jsonb not null default '[]',
  minted_at        timestamptz not null default now(),
  expires_at       timestamptz,                         -- null from registration on: it lives as long as the row
  registered_at    timestamptz,
  orchestrator_url text,                                -- by which the agent finds a gateway; null: not known
  constraint registered_tokens_do_not_expire check ((registered_at is null) <> (expires_at is null))
);

-- No index on last_seen_at: every heartbeat stays a heap-only update. Logged: a crash must not look like silence.
create table scaler_agent_presence (
  agent_id     text primary key,
  instance_id  text not null,
  last_seen_at timestamptz not null default now(),
  heard_since  timestamptz not null default now()       -- restarts after a gap in its heartbeats
) with (fillfactor = 50);

create table scaler_instances (
  instance_id  text primary key,
  kind         text not null check (kind in ('worker', 'gateway')),
  version      text,
  host_ids     text[] not null default '{}',
  boot_id      text,
  started_at   timestamptz not null default now(),
  alive_since  timestamptz not null default now(),      -- restarts after a gap in its heartbeat
  last_seen_at timestamptz not null default now()
) with (fillfactor = 50);
