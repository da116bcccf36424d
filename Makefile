# Targets a newcomer needs: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
KUBE_VERSION := v1.36.3
KUBE_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBE_VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

.PHONY: build
build: bin/lockstep-kube bin/lockstep bin/lockstep-exec bin/lockstep-exec-io ## Build the programs into bin/

# The dependency lists of both programs are Go's business: go build decides what is stale.
.PHONY: bin/lockstep-kube bin/lockstep bin/lockstep-exec bin/lockstep-exec-io
bin/lockstep-kube:
	@hack/build-with-progress.sh ./cmd/lockstep-kube $@ "$(KUBE_LDFLAGS)"
bin/lockstep:
	@hack/build-with-progress.sh ./cmd/lockstep $@ "-s -w -X lockstep.dev/lockstep/internal/cli.Version=$(VERSION)"

# They run in any image: static, and without a C library.
bin/lockstep-exec bin/lockstep-exec-io:
	@CGO_ENABLED=0 hack/build-with-progress.sh ./cmd/$(@F) $@ "-s -w"

.PHONY: generate
generate: ## Regenerate deepcopy functions and CRDs from api/
	@hack/generate.sh

.PHONY: generate-check
generate-check: ## Fail if a generated file is not what make generate would write
	@hack/generate.sh --check

.PHONY: test
test: build ## Run every test
	go vet ./...
	go test $$(go list ./... | grep -v /test/realnodes)
	$(MAKE) --no-print-directory test-real

.PHONY: test-real
test-real: build ## Run the tests of nodes that run containers (as root, see docs/real-nodes.md); part of test
	go test -count=1 -v ./test/realnodes

.PHONY: test-chaos
test-chaos: build ## Kill the manager and the API server under 500 gangs of 20 pods, again and again
	LOCKSTEP_CHAOS=full go test ./internal/manager -run 'Killed' -v -timeout 30m -count 1

.PHONY: demo
demo: build ## Bring up a control plane, run the examples and a small benchmark, show the result
	@hack/demo.sh
