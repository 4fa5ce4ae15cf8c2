#!/bin/sh
# Runs once, on an empty data directory: the roles and databases of Temporal and of Hatchway. The gateway's role reads no
# table; what it may execute is granted by `hatchway db migrate` to the role hatchway_gateway.
set -eu
psql --set=ON_ERROR_STOP=1 --quiet --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
\set temporal `cat /run/secrets/temporal_password`
\set hatchway `cat /run/secrets/hatchway_password`
\set gateway `cat /run/secrets/gateway_password`
create role temporal login password :'temporal';
create database temporal owner temporal;
create database temporal_visibility owner temporal;
create role hatchway_gateway nologin;
create role hatchway login password :'hatchway';
create role gateway login password :'gateway' in role hatchway_gateway;
create database hatchway owner hatchway;
SQL
