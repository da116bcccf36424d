package controller_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

// life runs a controller whose first write reaches the server and whose later writes do not.
// written receives that first write as a text without resource versions.
func (e *env) life() (written <-chan string, end func()) {
	e.Helper()
	var mu sync.Mutex
	wrote, hit := false, make(chan string, 1)
	cfg := e.c.ManagerRESTConfig()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "/events") {
				return next.RoundTrip(r)
			}
			mu.Lock()
			first := !wrote
			wrote = true
			mu.Unlock()
			if !first {
				return nil, syscall.ECONNRESET
			}
			var body []byte
			if r.Body != nil {
				var err error
				if body, err = io.ReadAll(r.Body); err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			answer, err := next.RoundTrip(r)
			hit <- r.Method + " " + r.URL.Path + " " + versions.ReplaceAllString(string(body), "")
			return answer, err
		})
	})
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	writer, err := apiwriter.New(apiwriter.Config{REST: cfg, Scheme: scheme.Scheme, Logger: log, StopTimeout: 1})
	if err != nil {
		e.Fatal(err)
	}
	ctl, err := controller.New(controller.Config{Evaluators: newPool(e), REST: e.c.ManagerRESTConfig(), Writer: writer, Log: log, Owns: e.owns})
	if err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	running.Go(func() { ctl.Run(ctx) })
	return hit, func() { cancel(); running.Wait() }
}

var versions = regexp.MustCompile(`"resourceVersion":"\d+",?`)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// overridden is a policy that changes the ConfigMap of component one.
const overridden = `
- name: %[1]s
  type: override
  properties:
    components:
    - name: one
      properties:
        objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {k: %[1]s}}]
`

// TestAManagerThatEndsAfterEachWriteComesToAnEnd runs managers in a row, each of which ends after
// one write, and checks that each writes something that the earlier ones have not written.
func TestAManagerThatEndsAfterEachWriteComesToAnEnd(t *testing.T) {
	const livesMax = 20
	for name, spec := range map[string]string{
		"outputs of components": `
components:
- name: one
  type: k8s-objects
  outputs: [{name: whole, valueFrom: output.data}]
  properties:
    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {url: "http://x/?a=1&b=<2>"}}]
- name: two
  type: k8s-objects
  inputs: [{from: whole, parameterKey: "objects[0].data"}]
  properties:
    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: two}}]
`,
		"objects of steps": withComponents(`
workflow:
  steps:
  - name: make
    type: apply-object
    properties: {value: {apiVersion: v1, kind: ConfigMap, metadata: {name: made}, data: {url: "http://x/?a=1&b=<2>"}}}
  - name: use
    type: apply-object
    properties: {value: {apiVersion: v1, kind: ConfigMap, metadata: {name: used}}}
  - {name: rest, type: deploy, properties: {policies: []}}
`, "one"),
		"a pause": withComponents(`
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: one}}
  - {name: pause, type: suspend, properties: {duration: 1s}}
  - name: both
    type: step-group
    subSteps:
    - {name: second, type: apply-component, properties: {component: two}}
    - {name: third, type: apply-object, properties: {value: {apiVersion: v1, kind: Secret, metadata: {name: made}, stringData: {k: v}}}}
`, "one", "two"),
		"one component twice": withComponents(`
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: one}}
  - {name: second, type: apply-component, properties: {component: one}}
  - {name: third, type: deploy, properties: {policies: []}}
`, "one"),
		"one component twice, which a policy changes": withComponents(`
policies:`+fmt.Sprintf(overridden, "red")+`
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: one}}
  - {name: second, type: deploy, properties: {policies: [red]}}
`, "one"),
		"one component three times, which policies change to and fro": withComponents(`
policies:`+fmt.Sprintf(overridden, "red")+fmt.Sprintf(overridden, "blue")+`
workflow:
  steps:
  - {name: first, type: deploy, properties: {policies: [red]}}
  - name: others
    type: step-group
    subSteps:
    - {name: second, type: deploy, properties: {policies: [blue]}}
  - {name: third, type: deploy, properties: {policies: [red]}}
`, "one"),
		"one object of two steps": withComponents(`
workflow:
  steps:
  - name: make
    type: apply-object
    properties: {value: {apiVersion: v1, kind: ConfigMap, metadata: {name: made}, data: {k: a}}}
  - name: change
    type: apply-object
    properties: {value: {apiVersion: v1, kind: ConfigMap, metadata: {name: made}, data: {k: b}}}
`, "one"),
	} {
		t.Run(name, func(t *testing.T) {
			e := connect(t)
			elsewhere.Store(e.ns, true)
			e.app("a", spec)
			phase, writes := oam.ApplicationPhase(""), map[string]int{}
			for lives := range livesMax {
				written, end := e.life()
				e.eventually("it writes, or has nothing to write", func() error {
					select {
					case write := <-written:
						if writes[write]++; writes[write] == 3 {
							t.Errorf("life %d writes for the third time: %s", lives, write)
						}
						return nil
					default:
					}
					if phase = e.application("a").Status.Phase; phase != oam.PhaseRunning {
						return fmt.Errorf("it is %s, %s", phase, asText(e.application("a").Status))
					}
					return nil
				})
				end()
				if phase == oam.PhaseRunning {
					t.Logf("after %d lives; requests %v", lives, e.requests())
					return
				}
			}
			t.Errorf("after %d lives, the application is %q; requests %v", livesMax, phase, e.requests())
		})
	}
}

// TestACommandIsNotLostWithItsManager gives commands to workflows whose managers each end after one
// write, so that one ends between the record of the command and the status that shows its effect.
func TestACommandIsNotLostWithItsManager(t *testing.T) {
	const livesMax = 20
	for name, c := range map[string]struct {
		spec, verb    string
		before, after func(*oam.Application) error
		beside        string
	}{
		"terminate": {spec: withComponents(`
workflow:
  steps:
  - {name: look, type: suspend}
  - {name: one, type: apply-component, properties: {component: one}}
`, "one"), verb: "terminate", before: inPhase(oam.PhaseWorkflowSuspending), after: inPhase(oam.PhaseWorkflowTerminated)},
		"restart --step": {spec: withComponents(`
workflow:
  steps:
  - {name: gate, type: gate}
  - {name: one, type: apply-component, properties: {component: one}}
`, "one"), verb: "restart/gate", before: inPhase(oam.PhaseWorkflowFailed), after: inPhase(oam.PhaseRunning),
			beside: `
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: gate}
spec:
  schematic:
    cue:
      template: |
        import "vela/op"
        read: op.#Read & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "gate"}}
        if read.value.data == _|_ {
          fail: op.#Fail & {message: "the gate is closed"}
        }
        parameter: {}
`},
	} {
		t.Run(name, func(t *testing.T) {
			e := connect(t)
			elsewhere.Store(e.ns, true)
			if c.beside != "" {
				e.apply(c.beside)
				e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: gate}}")
			}
			e.app("a", c.spec)
			// live runs managers until one has nothing more to write in a state.
			live := func(in func(*oam.Application) error) {
				t.Helper()
				for range livesMax {
					written, end := e.life()
					done := false
					e.eventually("it writes, or has nothing to write", func() error {
						select {
						case <-written:
							return nil
						default:
						}
						err := in(e.application("a"))
						done = err == nil
						return err
					})
					end()
					if done {
						return
					}
				}
				t.Fatalf("after %d lives: %s", livesMax, asText(e.application("a").Status))
			}
			live(c.before)
			if c.beside != "" {
				e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: gate}, data: {open: \"yes\"}}")
			}
			e.command("a", c.verb)
			live(c.after)
		})
	}
}

func asText(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
