#!/bin/sh
# `hatchway`, with the database's address from a file where DATABASE_URL_FILE names one: a compose or Kubernetes secret
# then shows in neither the container's configuration nor its command line.
set -eu
if [ -n "${DATABASE_URL_FILE:-}" ]; then
    if [ -n "${DATABASE_URL:-}" ]; then
        echo "DATABASE_URL and DATABASE_URL_FILE are both set: give one" >&2
        exit 2
    fi
    DATABASE_URL=$(cat "$DATABASE_URL_FILE")
    export DATABASE_URL
    unset DATABASE_URL_FILE
fi
exec hatchway "$@"
