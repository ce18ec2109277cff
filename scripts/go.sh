#!/bin/sh
# Runs the Go that scripts/setup.sh found or brought, also for whatever the
# command starts in its turn.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
go=go
if [ -s "$root/.cache/go-path" ]; then go=$(cat "$root/.cache/go-path"); fi
case "$go" in
/*) PATH=$(dirname "$go"):$PATH ;;
esac
# Go keeps its caches under HOME.
HOME=${HOME:-$root/.cache/home}
export HOME PATH GOTOOLCHAIN=auto
exec "$go" "$@"
