package controller_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

// fast runs a controller for only the test's namespace, on whose clock the tries of two minutes
// take a few seconds.
func (e *env) fast() (stop func()) {
	e.Helper()
	elsewhere.Store(e.ns, true)
	e.Cleanup(func() { elsewhere.Delete(e.ns) })
	stop, err := runWith(e.c, controller.Config{
		IdleAfter: 20 * time.Millisecond, Metrics: prometheus.NewRegistry(), Owns: e.owns, Clock: newFastClock(20),
	}, func(w apiwriter.Writer) apiwriter.Writer { return w })
	if err != nil {
		e.Fatal(err)
	}
	stop = sync.OnceFunc(stop)
	e.Cleanup(stop)
	return stop
}

// statusWrites returns how often the statuses of Applications have been written.
func (e *env) statusWrites() int {
	n := e.requests()
	return n["update applications/status"] + n["patch applications/status"]
}

// both returns a check that all checks pass.
func both(checks ...func(*oam.Application) error) func(*oam.Application) error {
	return func(a *oam.Application) error {
		for _, check := range checks {
			if err := check(a); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestAStepWhoseRequestFailsIsTriedTenTimes checks that a step whose request always fails ends the
// workflow, and that its status is not written while nothing changes.
func TestAStepWhoseRequestFailsIsTriedTenTimes(t *testing.T) {
	e := connect(t)
	e.fast()
	e.app("a", withComponents(`
workflow:
  steps:
  - {name: call, type: request, properties: {url: "http://127.0.0.1:1/none"}}
  - {name: one, type: apply-component, properties: {component: one}}
`, "one"))
	e.until("a", both(inPhase(oam.PhaseWorkflowFailed), hasSteps("call=failed/FailedAfterRetries one=skipped/Skip"),
		says(oam.ConditionReady, "step call failed", "connection refused")))
	// One status says that the step fails, another that it has failed; the first one may be split.
	if n := e.statusWrites(); n == 0 || n > 4 {
		t.Errorf("the status was written %d times: %v", n, e.requests())
	}
}

// failing has Applications that cannot be deployed: their specs, the condition and the text that say
// why, and the steps that fail.
var failing = map[string]struct {
	spec  string
	says  oam.ConditionType
	text  string
	steps string
}{
	"an object that the server refuses": {
		`
components:
- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {ports: [{port: 99999}]}}]}}
`, oam.ConditionWorkflow, "spec.ports[0].port", "one=failed/FailedAfterRetries",
	},
	"an object of nobody": {
		"components:\n- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}}]}}\n",
		oam.ConditionWorkflow, "exists but not managed by any application now", "one=failed/FailedAfterRetries",
	},
	"an object of nobody, in a step": {
		withComponents(`
workflow: {steps: [{name: make, type: apply-object, properties: {value: {apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}}}}]}
`, "two"), oam.ConditionReady, "exists but not managed by any application now", "make=failed/FailedAfterRetries",
	},
	"a kind that does not exist, in a step": {
		withComponents(`
workflow: {steps: [{name: make, type: apply-object, properties: {value: {apiVersion: none.example/v1, kind: None, metadata: {name: none}}}}]}
`, "three"), oam.ConditionReady, "the API server has no kind None", "make=failed/FailedAfterRetries",
	},
	"a kind that does not exist, in a component of a step": {
		`
components:
- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: none.example/v1, kind: None, metadata: {name: none}}]}}
workflow: {steps: [{name: make, type: apply-component, properties: {component: one}}]}
`, oam.ConditionReady, "the API server has no kind None", "make=failed/FailedAfterRetries",
	},
	"an object that is to be read only and does not exist": {
		`
components:
- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: missing}}]}}
policies:
- {name: look, type: read-only, properties: {rules: [{selector: {resourceTypes: [ConfigMap]}}]}}
`, oam.ConditionWorkflow, "a read-only policy keeps it from being made", "one=failed/FailedAfterRetries",
	},
	"the same, in a step": {
		`
components:
- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: missing}}]}}
policies:
- {name: look, type: read-only, properties: {rules: [{selector: {resourceTypes: [ConfigMap]}}]}}
workflow: {steps: [{name: one, type: apply-component, properties: {component: one}}]}
`, oam.ConditionReady, "a read-only policy keeps it from being made", "one=failed/FailedAfterRetries",
	},
	"a parameter that is missing": {
		"components:\n- {name: one, type: webservice, properties: {}}\n", oam.ConditionRender, "image", "",
	},
	"a type that does not exist": {
		"components:\n- {name: one, type: none, properties: {}}\n", oam.ConditionParsed, "none", "",
	},
	"an operation that does not exist": {
		`
components: []
workflow: {steps: [{name: fly, type: flies}]}
`, oam.ConditionReady, "the operation fly is not supported", "fly=failed/Rendering",
	},
}

// TestWhatCannotBeDeployedFails checks that every Application that cannot be deployed comes to the
// phase workflowFailed, with the reason on the step and in a condition, and that nothing is written
// from then on.
func TestWhatCannotBeDeployedFails(t *testing.T) {
	e := connect(t)
	e.fast()
	e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}}")
	e.apply(`{apiVersion: core.oam.dev/v1beta1, kind: WorkflowStepDefinition, metadata: {name: flies}, spec: {schematic: {cue: {template: "x: {#do: \"fly\", #provider: \"op\"}\nparameter: {}"}}}}`)
	name := func(of string) string { return strings.NewReplacer(" ", "-", ",", "").Replace(of) }
	for of, f := range failing {
		e.app(name(of), f.spec)
	}
	for of, f := range failing {
		check := both(inPhase(oam.PhaseWorkflowFailed), says(f.says, f.text), says(oam.ConditionReady, f.text))
		if f.steps != "" {
			check = both(check, hasSteps(f.steps), func(a *oam.Application) error {
				if m := a.Status.Workflow.Steps[0].Message; !strings.Contains(m, f.text) {
					return fmt.Errorf("the step says %q", m)
				}
				return nil
			})
		}
		e.until(name(of), check)
	}
	if n := e.statusWrites(); n > 4*len(failing) {
		t.Errorf("the statuses of %d applications were written %d times: %v", len(failing), n, e.requests())
	}
}

// TestAFailedApplicationStartsAgain checks what leads out of the phase workflowFailed: a change of
// the Application, and the end of what made it fail.
func TestAFailedApplicationStartsAgain(t *testing.T) {
	e := connect(t)
	e.fast()
	e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}}")
	taken := "components:\n- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}}]}}\n"
	const port = `
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: service}
spec:
  workload: {definition: {apiVersion: v1, kind: Service}}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "Service", metadata: name: context.name, spec: ports: [{port: %d}]}, parameter: {}'}}
`
	e.apply(fmt.Sprintf(port, 99999))
	e.app("changed", "components:\n- {name: one, type: webservice, properties: {}}\n")
	e.app("in-steps", taken+"workflow: {steps: [{name: one, type: apply-component, properties: {component: one}}]}\n")
	e.app("conflict", taken)
	e.app("refused", "components:\n- {name: mended, type: service}\n")
	e.app("unknown", "components:\n- {name: unknown, type: later, properties: {}}\n")
	const strict = `
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: strict}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "ConfigMap", metadata: name: context.name, data: text: parameter.text}, parameter: text: %s'}}
`
	e.apply(fmt.Sprintf(strict, "string"))
	e.app("unrendered", "components:\n- {name: unrendered, type: strict, properties: {}}\n")
	all := []string{"changed", "in-steps", "conflict", "refused", "unknown", "unrendered"}
	for _, name := range all {
		e.until(name, inPhase(oam.PhaseWorkflowFailed))
	}
	e.app("changed", withComponents("", "right"))
	e.app("in-steps", withComponents("workflow: {steps: [{name: one, type: apply-component, properties: {component: two}}]}\n", "two"))
	e.delete(configMaps, "theirs")
	e.apply(fmt.Sprintf(strict, `*"a" | string`))
	e.apply(fmt.Sprintf(port, 80))
	e.apply(strings.Replace(fmt.Sprintf(port, 81), "{name: service}", "{name: later}", 1))
	for _, name := range all {
		e.until(name, inPhase(oam.PhaseRunning))
	}
}

// TestOneBadComponentHoldsNoGoodOneBack checks that the other components are deployed, at once and
// by a step, that nothing of the bad one is removed, and that what depends on it waits.
func TestOneBadComponentHoldsNoGoodOneBack(t *testing.T) {
	e := connect(t)
	e.fast()
	const one = `
- name: %[1]s-one
  type: k8s-objects
  properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-one}, data: {k: "%[2]s"}}]}
`
	const bad = "- {name: %[1]s-bad, type: webservice, properties: {}}\n"
	const after = "- {name: %[1]s-after, type: k8s-objects, dependsOn: [%[1]s-bad], properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-after}}]}}\n"
	const steps = "policies: [{name: here, type: topology, properties: {clusters: [local]}}]\nworkflow: {steps: [{name: all, type: deploy, properties: {policies: [here]}}]}\n"
	good := "- {name: %[1]s-bad, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-bad}}]}}\n"
	for name, rest := range map[string]string{"at-once": "", "in-steps": steps} {
		e.app(name, fmt.Sprintf("components:"+one+good, name, "a")+rest)
		e.until(name, inPhase(oam.PhaseRunning))
		e.app(name, fmt.Sprintf("components:"+one+bad+after, name, "b")+rest)
	}
	for name, want := range map[string]string{
		"at-once":  "at-once-one=succeeded at-once-bad=failed/FailedAfterRetries at-once-after=skipped/Skip",
		"in-steps": "all=failed/FailedAfterRetries",
	} {
		e.until(name, both(inPhase(oam.PhaseWorkflowFailed), hasSteps(want), says(oam.ConditionRender, "image")))
		if u, err := e.get(configMaps, name+"-one"); err != nil || u.Object["data"].(map[string]any)["k"] != "b" {
			t.Errorf("%s: the good component is %v, %v", name, u, err)
		}
		if _, err := e.get(configMaps, name+"-bad"); err != nil {
			t.Errorf("%s: what the bad component had: %v", name, err)
		}
		if _, err := e.get(configMaps, name+"-after"); err == nil {
			t.Errorf("%s: what depends on the bad component was made", name)
		}
	}
}
