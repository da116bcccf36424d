package controller_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow/flowtest"
)

// withComponents is the spec of an Application with one ConfigMap for each component, followed by
// more.
func withComponents(more string, names ...string) string {
	spec := "components:\n"
	for _, n := range names {
		spec += fmt.Sprintf("- name: %[1]s\n  type: k8s-objects\n  properties:\n    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s}, data: {k: %[1]s}}]\n", n)
	}
	return spec + more
}

func hasSteps(want string) func(*oam.Application) error {
	return func(a *oam.Application) error {
		if got := flowtest.Steps(a.Status.Workflow); got != want {
			return fmt.Errorf("the steps are %s, not %s", got, want)
		}
		return nil
	}
}

func (e *env) command(name, verb string) {
	e.Helper()
	e.annotate(name, oam.WorkflowCommandAnnotation, verb+"@"+e.Name()+verb)
}

func (e *env) annotate(name, annotation, value string) {
	e.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: value}}})
	if err == nil {
		_, err = e.dyn.Resource(applications).Namespace(e.ns).Patch(e.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		e.Fatal(err)
	}
}

func TestStepsDeployComponentsOneAfterAnother(t *testing.T) {
	e := start(t)
	e.app("a", withComponents(`
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: one}}
  - {name: look, type: suspend}
  - {name: rest, type: deploy, properties: {policies: []}}
`, "one", "two"))
	app := e.until("a", inPhase(oam.PhaseWorkflowSuspending))
	if got := flowtest.Steps(app.Status.Workflow); got != "first=succeeded look=suspending/Suspend" {
		t.Errorf("the steps are %s", got)
	}
	if !app.Status.Workflow.Suspend || app.Status.Workflow.Mode != "StepByStep-DAG" {
		t.Errorf("%+v", app.Status.Workflow)
	}
	if _, err := e.get(configMaps, "one"); err != nil {
		t.Error(err)
	}
	if _, err := e.get(configMaps, "two"); err == nil {
		t.Error("the second component is there before its step")
	}
	e.command("a", "resume")
	app = e.until("a", inPhase(oam.PhaseRunning))
	if got := flowtest.Steps(app.Status.Workflow); got != "first=succeeded look=succeeded rest=succeeded" {
		t.Errorf("the steps are %s", got)
	}
	if len(app.Status.Services) != 2 || len(app.Status.AppliedResources) != 2 {
		t.Errorf("%+v", app.Status)
	}
	// Objects that have left the workflow are removed when its last run has ended.
	e.app("a", withComponents(`
workflow:
  steps:
  - {name: first, type: apply-component, properties: {component: two}}
`, "one", "two"))
	e.gone(configMaps, "one")
	e.until("a", hasSteps("first=succeeded"))
}

func TestAStatusThatSomebodyEditsIsObeyed(t *testing.T) {
	e := start(t)
	e.app("a", withComponents(`
workflow:
  steps: [{name: look, type: suspend}, {name: one, type: apply-component, properties: {component: one}}]
`, "one"))
	e.until("a", inPhase(oam.PhaseWorkflowSuspending))
	patch := []byte(`{"status":{"workflow":{"suspend":false}}}`)
	if _, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(t.Context(), "a", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	e.until("a", inPhase(oam.PhaseRunning))
}

func TestATerminatedWorkflowSkipsItsSteps(t *testing.T) {
	e := start(t)
	e.app("a", withComponents(`
workflow:
  steps:
  - {name: look, type: suspend}
  - {name: one, type: apply-component, properties: {component: one}}
  - {name: two, type: apply-component, if: always, properties: {component: two}}
`, "one", "two"))
	e.until("a", inPhase(oam.PhaseWorkflowSuspending))
	e.command("a", "terminate")
	e.until("a", func(a *oam.Application) error {
		if err := inPhase(oam.PhaseWorkflowTerminated)(a); err != nil {
			return err
		}
		return hasSteps("look=failed/Terminate one=skipped/Skip two=succeeded")(a)
	})
	if _, err := e.get(configMaps, "one"); err == nil {
		t.Error("the skipped component is there")
	}
	// The repeated run waits again.
	e.command("a", "restart")
	e.until("a", hasSteps("look=suspending/Suspend"))
}

func TestDeployTakesOverridesAndPlaces(t *testing.T) {
	e := start(t)
	other := e.ns + "-prod"
	e.namespace(other)
	e.apply("apiVersion: core.oam.dev/v1alpha1\nkind: Policy\nmetadata: {name: more}\ntype: override\nproperties: {components: [{name: web, traits: [{type: scaler, properties: {replicas: 2}}]}]}")
	e.app("a", fmt.Sprintf(`
components:
- name: web
  type: webservice
  properties: {image: nginx, env: [{name: A, value: b}]}
  traits: [{type: scaler, properties: {replicas: 1}}]
policies:
- {name: prod, type: topology, properties: {namespace: %s}}
- {name: image, type: override, properties: {components: [{type: webservice, properties: {image: "nginx:2"}}]}}
workflow:
  steps:
  - {name: test, type: deploy, properties: {policies: [image]}}
  - {name: prod, type: deploy, properties: {auto: false, policies: [prod, image, more]}}
`, other))
	e.until("a", inPhase(oam.PhaseWorkflowSuspending))
	image := func(ns string) (string, int64) {
		u, err := e.dyn.Resource(deployments).Namespace(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		return list[0].(map[string]any)["image"].(string), n
	}
	if i, n := image(e.ns); i != "nginx:2" || n != 1 {
		t.Errorf("%s, %d replicas", i, n)
	}
	e.command("a", "resume")
	app := e.until("a", inPhase(oam.PhaseRunning))
	if i, n := image(other); i != "nginx:2" || n != 2 {
		t.Errorf("%s, %d replicas", i, n)
	}
	if len(app.Status.Services) != 2 {
		t.Errorf("services: %+v", app.Status.Services)
	}
	e.delete(applications, "a")
	e.gone(applications, "a")
	if _, err := e.dyn.Resource(deployments).Namespace(other).Get(t.Context(), "web", metav1.GetOptions{}); err == nil {
		t.Error("an object remains")
	}
}

func TestPoliciesWithoutAWorkflowAreDeployed(t *testing.T) {
	e := start(t)
	e.app("a", withComponents(`
policies:
- {name: only, type: override, properties: {selector: [two]}}
`, "one", "two"))
	app := e.until("a", inPhase(oam.PhaseRunning))
	if got := flowtest.Steps(app.Status.Workflow); got != "deploy=succeeded" || app.Status.Workflow.Steps[0].Type != "deploy" {
		t.Errorf("the steps are %s", got)
	}
	if _, err := e.get(configMaps, "one"); err == nil {
		t.Error("a component that is not selected is there")
	}
}

func TestOutputsOfComponentsBecomeInputsOfOthers(t *testing.T) {
	e := start(t)
	e.app("a", `
components:
- name: two
  type: k8s-objects
  inputs: [{from: uid, parameterKey: "objects[0].data.uid"}]
  properties:
    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: two}, data: {k: v}}]
- name: one
  type: k8s-objects
  outputs: [{name: uid, valueFrom: output.metadata.uid}]
  properties:
    objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: one}, data: {k: v}}]
`)
	app := e.until("a", inPhase(oam.PhaseRunning))
	one, err := e.get(configMaps, "one")
	if err != nil {
		t.Fatal(err)
	}
	if d := e.data("two"); d["uid"] != string(one.GetUID()) || d["k"] != "v" {
		t.Errorf("%v; steps %s", d, flowtest.Steps(app.Status.Workflow))
	}
}

// stepDefinition applies a WorkflowStepDefinition with the given template.
func (e *env) stepDefinition(name, template string) {
	e.Helper()
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: WorkflowStepDefinition\nmetadata: {name: " + name + "}\nspec:\n  schematic:\n    cue:\n      template: |\n        " +
		strings.ReplaceAll(strings.TrimSpace(template), "\n", "\n        "))
}

func TestStepsOfUsersDefinitions(t *testing.T) {
	e := start(t)
	var posted []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		posted, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id": 7}`))
	}))
	defer server.Close()
	e.stepDefinition("publish", `
import ("vela/op", "encoding/json")
make: op.#Apply & {
	value: {
		apiVersion: "v1", kind: "ConfigMap"
		metadata: {name: parameter.name, namespace: context.namespace}
		data: {app: context.name, step: context.stepName}
	}
}
other: op.#Read & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: {name: "go", namespace: context.namespace}}}
wait: op.#ConditionalWait & {continue: other.value.data.go == "yes", message: "it waits for go"}
post: op.#HTTPPost & {url: parameter.url, request: {body: json.Marshal({uid: make.value.metadata.uid}), header: "Content-Type": "application/json"}}
answer: json.Unmarshal(post.response.body)
say: op.#Message & {message: "posted \(answer.id)"}
parameter: {name: string, url: string}
`)
	e.app("a", withComponents(fmt.Sprintf(`
workflow:
  steps:
  - {name: one, type: apply-component, properties: {component: one}}
  - name: publish
    type: publish
    properties: {name: made, url: %q}
    outputs: [{name: id, valueFrom: answer.id}]
  - {name: not, type: suspend, if: inputs.id != 7, inputs: [{from: id}]}
`, server.URL), "one"))
	e.until("a", func(a *oam.Application) error {
		if err := hasSteps("one=succeeded publish=running/Wait")(a); err != nil {
			return err
		}
		if m := a.Status.Workflow.Steps[1].Message; m != "it waits for go" {
			return fmt.Errorf("the message is %q", m)
		}
		return nil
	})
	e.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: go}\ndata: {go: \"yes\"}")
	app := e.until("a", inPhase(oam.PhaseRunning))
	if got := flowtest.Steps(app.Status.Workflow); got != "one=succeeded publish=succeeded not=skipped/Skip" || app.Status.Workflow.Steps[1].Message != "posted 7" {
		t.Errorf("the steps are %s: %+v", got, app.Status.Workflow.Steps)
	}
	made, err := e.get(configMaps, "made")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(posted), string(made.GetUID())) {
		t.Errorf("posted was %s", posted)
	}
	// The object is the Application's own: it is repaired and removed with the Application.
	e.patchData("made", `{"data":{"app":"changed"}}`)
	e.eventually("the object of the step is as it was", func() error {
		if d := e.data("made"); d["app"] != "a" {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
	e.delete(applications, "a")
	e.gone(applications, "a")
	e.gone(configMaps, "made")
}

func TestAStepThatFailsEndsTheWorkflow(t *testing.T) {
	e := start(t)
	e.stepDefinition("broken", `
import "vela/op"
fail: op.#Fail & {message: "no \(parameter.what)"}
parameter: {what: string}
`)
	e.app("a", withComponents(`
workflow:
  steps:
  - name: group
    type: step-group
    subSteps:
    - {name: bad, type: broken, properties: {what: luck}}
    - {name: good, type: apply-component, properties: {component: one}}
  - {name: two, type: apply-component, properties: {component: two}}
  - {name: tell, type: apply-component, if: 'status.bad.failed && status.bad.message == "no luck"', properties: {component: three}}
`, "one", "two", "three"))
	e.until("a", func(a *oam.Application) error {
		if err := inPhase(oam.PhaseWorkflowFailed)(a); err != nil {
			return err
		}
		return hasSteps("group=failed/Action group.bad=failed group.good=succeeded two=skipped/Skip tell=succeeded")(a)
	})
}

func TestStepsDoNotReachOtherNamespaces(t *testing.T) {
	e := start(t)
	e.stepDefinition("spy", `
import "vela/op"
read: op.#Read & {value: {apiVersion: "v1", kind: "Secret", metadata: {name: "x", namespace: "kube-system"}}}
parameter: {}
`)
	e.app("a", withComponents("workflow:\n  steps: [{name: spy, type: spy}]\n", "one"))
	e.until("a", func(a *oam.Application) error {
		if a.Status.Workflow == nil || len(a.Status.Workflow.Steps) == 0 || !strings.Contains(a.Status.Workflow.Steps[0].Message, "applications do not reach objects of namespace kube-system") {
			return fmt.Errorf("it says something else")
		}
		return nil
	})
}

func TestAWorkflowThatCannotRunSaysWhy(t *testing.T) {
	e := start(t)
	for name, c := range map[string]struct{ workflow, want string }{
		"type":    {"{steps: [{name: a, type: none}]}", "WorkflowStepDefinition none"},
		"depends": {"{steps: [{name: a, type: suspend, dependsOn: [b]}]}", "step a depends on b, which does not exist"},
		"ref":     {"{ref: none}", "workflow.ref: Workflow"},
	} {
		e.app(name, withComponents("workflow: "+c.workflow+"\n", name))
		e.until(name, says(oam.ConditionParsed, c.want))
	}
	e.apply("apiVersion: core.oam.dev/v1alpha1\nkind: Workflow\nmetadata: {name: none}\nsteps: [{name: ref, type: apply-component, properties: {component: ref}}]")
	e.until("ref", inPhase(oam.PhaseRunning))
}

func TestTheAnnotationRestartsAWorkflow(t *testing.T) {
	e := start(t)
	e.app("a", withComponents(`workflow: {steps: [{name: one, type: apply-component, properties: {component: one}}]}`+"\n", "one"))
	first := e.until("a", inPhase(oam.PhaseRunning))
	e.annotate("a", oam.RestartWorkflowAnnotation, "true")
	e.until("a", func(a *oam.Application) error {
		if a.Annotations[oam.RestartWorkflowAnnotation] != "" || a.Status.Workflow.AppRevision == first.Status.Workflow.AppRevision {
			return fmt.Errorf("it has not been restarted")
		}
		return inPhase(oam.PhaseRunning)(a)
	})
}

// clear removes the workflow's status, as the original's command line does to restart a workflow.
func (e *env) clear(name string) {
	e.Helper()
	e.eventually("the status is cleared", func() error {
		u, err := e.get(applications, name)
		if err != nil {
			return err
		}
		unstructured.RemoveNestedField(u.Object, "status", "workflow")
		_, err = e.dyn.Resource(applications).Namespace(e.ns).UpdateStatus(e.Context(), u, metav1.UpdateOptions{})
		return err
	})
}

// TestAWorkflowWhoseStatusIsClearedRunsAgain checks Applications that have been deployed in steps and
// at once, and one whose workflow waits.
func TestAWorkflowWhoseStatusIsClearedRunsAgain(t *testing.T) {
	e := start(t)
	e.app("steps", withComponents(`
workflow:
  steps:
  - {name: look, type: suspend}
  - {name: one, type: apply-component, properties: {component: one}}
`, "one"))
	e.app("whole", withComponents("", "two"))
	e.until("steps", inPhase(oam.PhaseWorkflowSuspending))
	e.command("steps", "resume")
	uids := map[string]string{}
	run := func(name, object string) string {
		t.Helper()
		app := e.until(name, both(inPhase(oam.PhaseRunning), func(a *oam.Application) error {
			if a.Status.Workflow == nil || !a.Status.Workflow.Finished {
				return fmt.Errorf("its workflow is %+v", a.Status.Workflow)
			}
			return nil
		}))
		u, err := e.get(configMaps, object)
		if err != nil {
			t.Fatal(err)
		}
		if uid := string(u.GetUID()); uids[object] != "" && uids[object] != uid {
			t.Errorf("%s was made again", object)
		} else {
			uids[object] = uid
		}
		return app.Status.Workflow.AppRevision
	}
	first := run("steps", "one")
	e.clear("steps")
	e.until("steps", both(inPhase(oam.PhaseWorkflowSuspending), hasSteps("look=suspending/Suspend")))
	e.clear("steps") // while it waits
	e.until("steps", func(a *oam.Application) error {
		if a.Status.Workflow == nil || !strings.HasSuffix(a.Status.Workflow.AppRevision, "#2") {
			return fmt.Errorf("its workflow is %+v", a.Status.Workflow)
		}
		return inPhase(oam.PhaseWorkflowSuspending)(a)
	})
	e.annotate("steps", oam.WorkflowCommandAnnotation, "resume@again")
	if second := run("steps", "one"); second != first+"#2" {
		t.Errorf("the runs are %s and %s", first, second)
	}

	first = run("whole", "two")
	e.clear("whole")
	if second := run("whole", "two"); second != first+"#1" {
		t.Errorf("the runs are %s and %s", first, second)
	}
	for _, name := range []string{"steps", "whole"} {
		if app := e.application(name); len(app.Status.AppliedResources) != 1 || len(app.Status.Services) != 1 {
			t.Errorf("%s: %+v", name, app.Status)
		}
	}
}
