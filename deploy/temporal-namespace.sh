#!/bin/sh
# Hatchway's own namespace: whoever reaches it can start and release provisions. Safe to run again.
set -eu
if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
    echo "namespace $TEMPORAL_NAMESPACE is there"
    exit 0
fi
# A namespace that is not known to every part of the server yet is waited for: `setup` uses it at once.
temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention 72h
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    sleep 1
    temporal workflow list --namespace "$TEMPORAL_NAMESPACE" --limit 1 >/dev/null 2>&1 && exit 0
done
echo "namespace $TEMPORAL_NAMESPACE was made, but the server does not answer for it" >&2
exit 1
