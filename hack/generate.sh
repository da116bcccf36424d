#!/usr/bin/env bash
# generate.sh [--check]: the deepcopy functions in api/ and the CRDs in config/crd, from the types and markers in api/.
# With --check nothing is changed, and it fails if a file is not what it would be.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
go tool controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir="$out/crd"
go run ./hack/crd "$out/crd"
for package in api/*/v*; do
	go tool controller-gen object paths="./$package" output:object:dir="$out/$package"
done
if [ "${1:-}" = --check ]; then
	status=0
	diff -r "$out/crd" config/crd || status=1
	for package in api/*/v*; do
		diff "$out/$package/zz_generated.deepcopy.go" "$package/zz_generated.deepcopy.go" || status=1
	done
	[ $status -eq 0 ] || echo "generated files are out of date: run make generate" >&2
	exit $status
fi
rm -rf config/crd
cp -r "$out/crd" config/crd
cp -r "$out/api" .
