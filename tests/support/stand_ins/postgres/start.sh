#!/bin/sh
# An empty data directory is initialised, and its scripts run against a server that only its socket reaches.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086 # the arguments are words
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust $POSTGRES_INITDB_ARGS
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait --options="-c listen_addresses=''" start
    for script in /docker-entrypoint-initdb.d/*.sh; do POSTGRES_USER=postgres sh "$script"; done
    pg_ctl --wait --mode=fast stop
fi
exec postgres -c listen_addresses='*'
