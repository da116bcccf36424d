# Targets a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
KUBE_VERSION := v1.36.3
KUBE_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# Everything is built without a C library: the programs run in any image, and programs and tests share one build cache.
export CGO_ENABLED := 0

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

.PHONY: build
build: bin/lockstep-kube bin/lockstep bin/lockstep-exec bin/lockstep-exec-io ## Build the programs into bin/

# The dependency lists of both programs are Go's business: go build decides what is stale.
.PHONY: bin/lockstep-kube bin/lockstep bin/lockstep-exec bin/lockstep-exec-io
bin/lockstep-kube:
	@hack/build-with-progress.sh ./cmd/lockstep-kube $@ "$(KUBE_LDFLAGS)"

# These go into images that have no library (see Dockerfile): that they are static is checked.
bin/lockstep:
	@hack/build-with-progress.sh ./cmd/lockstep $@ "-s -w -X lockstep.dev/lockstep/internal/cli.Version=$(VERSION)"
	@go run ./hack/static $@
bin/lockstep-exec bin/lockstep-exec-io:
	@hack/build-with-progress.sh ./cmd/$(@F) $@ "-s -w"
	@go run ./hack/static $@

.PHONY: generate
generate: ## Regenerate deepcopy functions and CRDs from api/
	@hack/generate.sh

.PHONY: generate-check
generate-check: ## Fail if a generated file is not what make generate would write
	@hack/generate.sh --check

.PHONY: lint
lint: ## Run gofmt, vet and staticcheck on the whole tree (minutes the first time)
	@test -z "$$(gofmt -l . | tee -a /dev/stderr)"
	go vet ./...
	# A third of staticcheck's CPU time goes into garbage collection.
	GOGC=200 go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

.PHONY: lint-all
lint-all: ## Run golangci-lint with .golangci.yml, which finds more than lint (the first run compiles it)
	go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run ./...

.PHONY: licences
licences: ## Fail for a linked module whose licence is not allowed
	go run ./hack/licences ./cmd/...

.PHONY: check
check: generate-check lint licences ## Run everything that needs no cluster but the tests

.PHONY: definitions-overlap
definitions-overlap: ## Measure what the built-in definitions have in common with those in THEIRS=DIR
	go run ./hack/overlap config/definitions $(THEIRS)

# The packages whose tests take longest start first, or else the last of them would run alone at the end.
SLOW_PACKAGES := $(addprefix ./,internal/manager internal/workflow/controller test/hostile test/faults internal/lab/jobs \
	internal/application/controller internal/install test/rules test/examples internal/localcluster/supervise test/applications)

.PHONY: test
test: build ## Run the checks and every test
	hack/test-real-beside-checks.sh
	# Tests wait for control planes much of their time: one package more than there are CPUs runs at a time. The checks
	# include all of vet.
	go test -p $$(($$(nproc) + 1)) -vet=off -timeout 40m $(SLOW_PACKAGES) $$(go list ./... | grep -v /test/realnodes)

.PHONY: test-real
test-real: build ## Run the tests of nodes that run containers (as root, see docs/real-nodes.md); part of test
	go test -count=1 -v ./test/realnodes

.PHONY: test-race
test-race: build ## Run every test with the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -timeout 60m $$(go list ./... | grep -v /test/realnodes)

.PHONY: fuzz
fuzz: ## Run every fuzz target for a minute
	hack/fuzz.sh 1m

.PHONY: test-properties
test-properties: ## Run the property tests of the batch scheduler with 100,000 random cases each (CHECKS and TESTS choose others)
	hack/properties.sh $(or $(CHECKS),100000) '$(or $(TESTS),.)'

.PHONY: test-memory
test-memory: build ## Measure the manager's memory, and the latency of others, under 20 hostile objects of each family
	LOCKSTEP_HOSTILE_OBJECTS=20 go test ./internal/manager -run TestTheManagerStaysSmallUnderHostileObjects -v -timeout 30m -count 1

.PHONY: test-hostile
test-hostile: build ## Store wrong values in every leaf of every CRD, and see that nobody else is disturbed
	LOCKSTEP_HOSTILE=full go test ./test/hostile -v -timeout 120m -count 1

.PHONY: test-pauses
test-pauses: build ## Stop managers at random moments for 5 to 60 s, 20 times, under load
	LOCKSTEP_PAUSES=20 go test ./internal/manager -run Paused -v -timeout 40m -count 1

.PHONY: test-faults
test-faults: build ## Kill the manager at every write of small loads and 50 times under a large one; 200 seeds of random faults
	LOCKSTEP_CRASH_POINTS=all LOCKSTEP_KILLS=50 LOCKSTEP_FAULT_SEEDS=200 go test ./test/faults -v -timeout 120m -count 1

.PHONY: test-kernels
test-kernels: ## Run the agent's tests on kernels of Debian in virtual machines (installs qemu; under a minute)
	hack/kernels.sh
	go test ./test/kernels -v -timeout 20m -count 1

.PHONY: test-stores
test-stores: build ## Run the tests of artifact stores on real servers, which are fetched (needs npm, java and mvn; ten minutes at first)
	hack/stores.sh
	go test ./test/stores -v -timeout 20m -count 1
	go test ./test/realnodes -run 'TestArtifactStores$$' -v -timeout 20m -count 1

.PHONY: test-operators
test-operators: build ## Run operators that create PodGroups against a control plane (as root; fetches and builds them, ten minutes at first)
	hack/operators.sh
	go test ./test/operators -v -timeout 20m -count 1

.PHONY: test-lab
test-lab: build ## Run the laboratory's long tests, too: each scenario, tune and soak on control planes (about 15 minutes)
	LOCKSTEP_LONG=1 go test -timeout 60m -count 1 ./internal/lab/...

.PHONY: test-mutations
test-mutations: build ## Make some fifty mistakes in the code, each of which a test must find
	LOCKSTEP_MUTATIONS=1 go test ./test/mutations -v -timeout 60m -count 1

.PHONY: demo
demo: build ## Bring up a control plane, run the examples and a small benchmark, show the result
	@hack/demo.sh

.PHONY: demo-full
demo-full: build ## The demo with a larger benchmark (five minutes)
	@hack/demo.sh full
