#!/usr/bin/env bash
# generate.sh [OUT]: deepcopy functions in api/, and the CRDs in OUT (config/crd) from the markers of api/ and hack/crd.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-config/crd}
mkdir -p "$out"
rm -f "$out"/*.yaml
if [ "$out" = config/crd ]; then
	go tool controller-gen object paths=./api/...
fi
go tool controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/... output:crd:dir="$out"
go run ./hack/crd "$out"
