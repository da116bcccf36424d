#!/usr/bin/env bash
# What make test-stores needs, from the registries of Go, npm and Maven, into bin/stores: servers of artifact stores, or what
# their vendors publish to stand for them. Does nothing where all of it is there; what cannot be had is skipped by the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$PWD/bin/stores
mkdir -p "$to"

if [ ! -x "$to/fake-gcs-server" ]; then
	CGO_ENABLED=0 GOBIN=$to go install github.com/fsouza/fake-gcs-server@v1.56.1 || echo "stores: no server for Google Cloud Storage" >&2
fi
if [ ! -x "$to/minio" ]; then
	CGO_ENABLED=0 GOBIN=$to go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c || echo "stores: no server for S3" >&2
fi
if [ ! -d "$to/azurite/node_modules" ]; then
	if command -v npm >/dev/null; then
		npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix "$to/azurite" azurite@3.37.0 >&2
	else
		echo "stores: no emulator of Azure, for lack of npm" >&2
	fi
fi
if [ ! -d "$to/hadoop" ]; then
	if command -v mvn >/dev/null; then
		mvn -q -B -f hack/stores.xml org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
			-DoutputDirectory="$to/hadoop" -DincludeScope=runtime >&2
	else
		echo "stores: no HDFS, for lack of mvn" >&2
	fi
fi
