#!/bin/sh
# The passwords of docker-compose.yml, one a file below secrets/, made once and never overwritten: the database keeps the
# ones that it was created with. To make new ones, remove the database's volume too.
#
# The directory is closed to everyone else; the files in it are not, because compose mounts them as they are and the
# containers do not run as the user who made them.
set -eu
cd "$(dirname "$0")/.."
umask 077
mkdir -p secrets
chmod 700 secrets

made=
password() {
    [ -s "secrets/$1" ] && return
    # Hex, so that nothing in an address or a script needs quoting: 192 bits.
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"secrets/$1.new"
    chmod 444 "secrets/$1.new"
    mv "secrets/$1.new" "secrets/$1"
    made="$made $1"
}
address() {
    printf 'postgresql://%s:%s@postgres:5432/hatchway' "$2" "$(cat "secrets/$3")" >"secrets/$1.new"
    chmod 444 "secrets/$1.new"
    mv -f "secrets/$1.new" "secrets/$1"
}

password postgres_password
password temporal_password
password hatchway_password
password gateway_password
address hatchway_database_url hatchway hatchway_password
address gateway_database_url gateway gateway_password

if [ -n "$made" ]; then echo "made in secrets/:$made"; else echo "secrets/ is complete; nothing changed"; fi
