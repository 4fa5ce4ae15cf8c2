#!/bin/sh
# Temporal's own tables, made or brought to the server's version. Safe to run again.
set -eu
export SQL_PLUGIN=postgres12 SQL_HOST=postgres SQL_PORT=5432 SQL_USER=temporal
SQL_PASSWORD=$(cat /run/secrets/temporal_password)
export SQL_PASSWORD
for database in temporal temporal_visibility; do
    case $database in temporal) schema=temporal ;; *) schema=visibility ;; esac
    # 0.0 is the table of versions itself: it refuses to be made twice, and the update below finds out what is missing.
    temporal-sql-tool --db "$database" setup-schema -v 0.0 || echo "$database has a schema: updating it"
    temporal-sql-tool --db "$database" update-schema -d "/etc/temporal/schema/postgresql/v12/$schema/versioned"
done
