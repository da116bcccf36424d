#!/usr/bin/env bash
# What make test-operators needs, from the Go proxy, into bin/operators: operators that create PodGroups, each with its
# CRDs. This is the one place with their versions. Does nothing where all of it is there; what cannot be had is skipped by
# the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$PWD/bin/operators
mkdir -p "$to"

# fetch NAME MODULE VERSION PROGRAM CRDS: PROGRAM is the package of the program, CRDS the folder in the module.
fetch() {
	if [ "$(cat "$to/$1/version" 2>/dev/null)" = "$3" ]; then
		return
	fi
	rm -rf "${to:?}/$1"
	mkdir "$to/$1"
	# Outside this module, whose replace directives do not concern them.
	if ! (cd "$to" && CGO_ENABLED=0 GOBIN=$to/$1 go install "$2$4@$3"); then
		rmdir "$to/$1"
		echo "operators: no $1" >&2
		return
	fi
	mv "$to/$1"/* "$to/$1/program"
	mkdir "$to/$1/crds"
	cp "$(cd "$to" && go mod download -json "$2@$3" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/$5"/*_*.yaml "$to/$1/crds/"
	chmod -R u+w "$to/$1"
	echo "$3" >"$to/$1/version"
}

fetch training-operator github.com/kubeflow/training-operator v1.8.1 /cmd/training-operator.v1 manifests/base/crds
fetch kuberay github.com/ray-project/kuberay/ray-operator v1.5.0 "" config/crd/bases
