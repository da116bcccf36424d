#!/usr/bin/env bash
# Runs the property tests of the batch scheduler with many random cases each (the first argument; 100,000 by
# default), or those whose names match the regular expression in the second one. It says how long each took, and fails
# at the first that finds something; rapid then has written the case to a file that the test reads.
set -euo pipefail
cd "$(dirname "$0")/.."
checks=${1:-100000}
wanted=${2:-.}
packages=(internal/batch internal/cluster internal/podgroup internal/podset internal/scheduler)
for file in $(git grep -l 'rapid\.Check(' -- "${packages[@]/%/\/*_test.go}"); do
    # Helpers may call rapid.Check for a test: only functions that begin with Test count.
    for name in $(awk '/^func /{test = $2 ~ /^Test/ ? $2 : ""} /rapid\.Check\(/ && test {sub(/\(.*/, "", test); print test; test = ""}' "$file"); do
        [[ $name =~ $wanted ]] || continue
        echo "== $(dirname "$file") $name"
        go test -count=1 -timeout 0 -run "^$name\$" "./$(dirname "$file")" -rapid.checks="$checks"
    done
done
