#!/usr/bin/env bash
# The demonstration: a real control plane with simulated nodes, the example jobs, a small benchmark against stock
# Kubernetes Jobs, and a report. With the argument "full", the benchmark has three shapes of jobs and a more precise
# floor. Everything it starts is stopped at the end; out/demo keeps the results.
set -euo pipefail
cd "$(dirname "$0")/.."
out=out/demo
name=demo
kubeconfig=$out/kubeconfig
mkdir -p "$out"

say() { printf '\n== %s\n' "$*" >&2; }
trap 'bin/lockstep down --name "$name" >/dev/null 2>&1 || true' EXIT

say "A control plane with 100 simulated nodes"
bin/lockstep down --name "$name" >/dev/null 2>&1 || true
bin/lockstep up --name "$name" --nodes 100 --kubeconfig "$kubeconfig"

say "The example jobs: one pod, a gang, two queues (one job, 'failing', fails on purpose)"
bin/lockstep submit --kubeconfig "$kubeconfig" --wait --timeout 2m \
	-f examples/batch/hello.yaml -f examples/batch/gang.yaml -f examples/batch/queues.yaml
bin/lockstep submit --kubeconfig "$kubeconfig" --wait --timeout 2m -f examples/batch/failing.yaml || true
bin/lockstep get jobs --kubeconfig "$kubeconfig"
bin/lockstep get queues --kubeconfig "$kubeconfig"

say "The control plane goes down; each benchmark run brings up a fresh one"
bin/lockstep down --name "$name"

if [ "${1:-}" = full ]; then
	say "1,000 pods in three shapes, Lockstep and stock Kubernetes Jobs in alternation"
	bench=(--shapes 1000x1,50x20,1x1000 --warm-up 200 --floor-concurrency 64,1024)
else
	say "1,000 pods in 50 jobs of 20: Lockstep, then stock Kubernetes Jobs"
	bench=(--shapes 50x20 --warm-up 100 --floor-concurrency 256 --floor-tries 1)
fi
bin/lockstep bench run --scenario batch "${bench[@]}" --gang true --system lockstep,kubernetes --nodes 100 --out "$out/report"
