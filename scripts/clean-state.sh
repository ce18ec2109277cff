#!/bin/sh
# Deletes the gateway's state directory: every box and workspace with its files.
# Asks first, and does nothing while a gateway, a node or a mount uses it.
set -eu
cd "$(dirname "$0")/.."

# value prints the string that key $1 has in sbgw.toml, if it is set there.
value() { sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\"\([^\"]*\)\".*/\1/p" sbgw.toml | head -n 1; }

default=/var/lib/sbgw
[ "$(id -u)" = 0 ] || default=${XDG_STATE_HOME:-$HOME/.local/state}/sbgw
dir=${SBGW_STATE_DIR:-$(value state_dir)}
dir=${dir:-$default}

if [ ! -d "$dir" ]; then
	echo "nothing to delete: $dir does not exist"
	exit 0
fi
if [ ! -e "$dir/state.db" ]; then
	echo "$dir has no state.db, so it is not a gateway's state directory; left alone" >&2
	exit 1
fi
if grep -q " $dir/" /proc/self/mountinfo; then
	echo "$dir has mounts in it; stop what uses it first: make down" >&2
	exit 1
fi
printf 'Delete %s with all boxes, workspaces and their files? Type yes: ' "$dir"
read -r answer || answer=
if [ "$answer" != yes ]; then
	echo "left as it is"
	exit 1
fi
rm -rf --one-file-system "$dir"
echo "deleted $dir"
