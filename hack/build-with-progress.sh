#!/usr/bin/env bash
# build-with-progress.sh PACKAGE OUTPUT LDFLAGS: go build that says how far it is. The first build of the Kubernetes
# parts compiles some 2,000 packages and takes minutes; silence would look like a hang.
set -euo pipefail
pkg=$1 out=$2 ldflags=$3
mkdir -p "$(dirname "$out")"
total=$(go list -deps "$pkg" 2>/dev/null | wc -l)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
go build -v -ldflags "$ldflags" -o "$out" "$pkg" 2>"$log" &
pid=$!
last=0
while kill -0 "$pid" 2>/dev/null; do
	sleep 1
	n=$(grep -cv '^go: ' "$log" || true)
	if [ -t 2 ]; then
		printf '\r%s: %d packages compiled, %ds ' "$out" "$n" $((SECONDS - start)) >&2
	elif [ $((SECONDS - start - last)) -ge 20 ]; then
		last=$((SECONDS - start))
		printf '%s: %d of at most %d packages compiled, %ds\n' "$out" "$n" "$total" "$last" >&2
	fi
done
if [ -t 2 ]; then printf '\r\033[K' >&2; fi
if ! wait "$pid"; then
	grep -v '^[a-z0-9./_-]*$' "$log" >&2 || cat "$log" >&2
	exit 1
fi
printf '%s built in %ds\n' "$out" $((SECONDS - start)) >&2
