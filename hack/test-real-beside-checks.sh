#!/usr/bin/env bash
# test-real-beside-checks.sh: the checks compute while the tests of real nodes wait for containers, so both run at the
# same time, the checks at the lowest priority. Their output follows when both have ended. No other tests run
# meanwhile: what they start could be taken for something that real nodes leave behind.
set -uo pipefail
out=$(mktemp)
nice -n 19 make --no-print-directory check >"$out" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null; rm -f "$out"' EXIT
go test -count=1 -v ./test/realnodes
real=$?
wait $pid
checks=$?
cat "$out"
[ $checks -eq 0 ] || echo "make check has failed" >&2
[ $real -eq 0 ] || echo "the tests of real nodes have failed" >&2
exit $((checks | real))
