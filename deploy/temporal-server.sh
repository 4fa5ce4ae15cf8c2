#!/bin/sh
# The server's own start, with the password from a secret instead of the container's configuration.
set -eu
POSTGRES_PWD=$(cat /run/secrets/temporal_password)
export POSTGRES_PWD
exec /etc/temporal/entrypoint.sh
