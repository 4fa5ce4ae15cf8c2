#!/bin/sh
# As the real server: without a database that its login can read and that has a schema, it does not start.
set -eu
[ "$DB" = postgres12 ]
for database in temporal temporal_visibility; do
    PGPASSWORD=$POSTGRES_PWD psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --host "$POSTGRES_SEEDS" --port "$DB_PORT" \
        --username "$POSTGRES_USER" --dbname "$database" --command "select version from schema_version" >/dev/null
done
exec temporal server start-dev --ip "$BIND_ON_IP" --headless --log-level error
