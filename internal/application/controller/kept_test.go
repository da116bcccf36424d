package controller_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/sandbox"
)

// busy refuses every request the first time with sandbox.ErrBusy.
type busy struct {
	evaluation.Pool
	mu    sync.Mutex
	asked map[string]int
}

func (b *busy) Do(ctx context.Context, tenant, evaluator string, request []byte) ([]byte, error) {
	key := evaluator + " " + string(request)
	b.mu.Lock()
	b.asked[key]++
	first := b.asked[key] == 1
	b.mu.Unlock()
	if first {
		return nil, sandbox.ErrBusy
	}
	return b.Pool.Do(ctx, tenant, evaluator, request)
}

// through waits until the objects of three components have been evaluated.
func (b *busy) through(e *env) {
	e.Helper()
	e.eventually("all is evaluated", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, text := range []string{"text one", "text two", "text three"} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(b.asked)), func(k string) bool { return strings.Contains(k, text) && b.asked[k] > 1 }) {
				return fmt.Errorf("%s has not been evaluated", text)
			}
		}
		return nil
	})
}

// TestWhatIsDeployedIsKeptByTheNextManager checks that a starting manager removes no objects of an
// Application while it cannot find out what the Application consists of. One Application is
// deployed in steps, the other at once.
func TestWhatIsDeployedIsKeptByTheNextManager(t *testing.T) {
	const definition = `
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: noted}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  schematic:
    cue:
      template: |
        parameter: text: string
        output: {apiVersion: "v1", kind: "ConfigMap", metadata: name: context.name, data: text: parameter.text}
`
	const steps = `
components:
- {name: one, type: noted, properties: {text: "text one"}}
- {name: two, type: noted, properties: {text: "text two"}}
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: one}}
  - {name: rest, type: deploy, properties: {policies: [everywhere]}}
`
	for name, with := range map[string]struct {
		change func(e *env, cfg *controller.Config)
		taken  func(e *env, cfg *controller.Config) // waits until the next manager has handled both
	}{
		"no room for evaluations": {
			func(e *env, cfg *controller.Config) {
				cfg.Evaluators = &busy{Pool: newPool(e), asked: map[string]int{}}
			},
			func(e *env, cfg *controller.Config) {
				cfg.Evaluators.(*busy).through(e)
				e.app("steps", strings.Replace(steps, "text two", "text two, changed", 1))
				e.until("steps", inPhase(oam.PhaseRunning))
			},
		},
		"without a policy that applications share": {
			func(e *env, _ *controller.Config) {
				e.delete(v1alpha1.GroupVersion.WithResource("policies"), "everywhere")
			},
			func(e *env, _ *controller.Config) { e.until("steps", says(oam.ConditionParsed, "everywhere")) },
		},
		"without a definition": {
			func(e *env, _ *controller.Config) {
				e.delete(oam.GroupVersion.WithResource("componentdefinitions"), "noted")
			},
			func(e *env, _ *controller.Config) {
				e.until("steps", says(oam.ConditionParsed, "noted"))
				e.until("whole", says(oam.ConditionParsed, "noted"))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := connect(t)
			elsewhere.Store(e.ns, true)
			run := func(cfg *controller.Config) (stop func()) {
				cfg.IdleAfter, cfg.Metrics, cfg.Owns = 20*time.Millisecond, prometheus.NewRegistry(), e.owns
				stop, err := runWith(e.c, *cfg, func(w apiwriter.Writer) apiwriter.Writer { return w })
				if err != nil {
					t.Fatal(err)
				}
				return stop
			}
			stop := run(&controller.Config{})
			e.apply(definition)
			e.apply("{apiVersion: core.oam.dev/v1alpha1, kind: Policy, metadata: {name: everywhere}, type: topology, properties: {clusters: [local]}}")
			e.app("steps", steps)
			e.app("whole", `
components:
- {name: three, type: noted, properties: {text: text three}}
`)
			e.until("steps", inPhase(oam.PhaseRunning))
			e.until("whole", inPhase(oam.PhaseRunning))
			stop()
			var cfg controller.Config
			with.change(e, &cfg)
			before := e.requests()
			stop = run(&cfg)
			defer stop()
			with.taken(e, &cfg)
			for _, object := range []string{"one", "two", "three"} {
				if _, err := e.get(configMaps, object); apierrors.IsNotFound(err) {
					t.Errorf("configmap %s was removed", object)
				}
			}
			if n := less(e.requests(), before)["delete configmaps"]; n > 0 {
				t.Errorf("%d objects were removed", n)
			}
		})
	}
}
