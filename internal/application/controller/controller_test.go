package controller_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
)

const small = `
components:
- name: web
  type: webservice
  properties: {image: nginx}
  traits:
  - type: storage
    properties:
      configMap: [{name: %[1]s-conf, mountPath: /conf, data: {k: %[2]s}}]
      secret: [{name: %[1]s-cred, mountPath: /cred, stringData: {p: w}}]
`

func TestASmallApplicationsLifeTakesFewRequests(t *testing.T) {
	e := start(t)
	// The first Application makes the controller watch the kinds.
	e.app("first", fmt.Sprintf(small, "first", "v"))
	e.until("first", inPhase(oam.PhaseRunning))
	e.delete(applications, "first")
	e.gone(applications, "first")

	e.app("shop", fmt.Sprintf(small, "shop", "v"))
	app := e.until("shop", inPhase(oam.PhaseRunning))
	made := less(e.requests(), map[string]int{})
	e.Log("created and deleted first, created shop:", made)
	if s := app.Status.Services; len(s) != 1 || !s[0].Healthy || s[0].Message != "Ready:1/1" || s[0].WorkloadDefinition.Kind != "Deployment" {
		t.Errorf("services: %+v", s)
	}
	if r := app.Status.LatestRevision; r == nil || r.Name != "shop-v1" || r.Revision != 1 {
		t.Errorf("revision: %+v", r)
	}
	if w := app.Status.Workflow; w == nil || !w.Finished || len(w.Steps) != 1 || w.Steps[0].Phase != oam.StepSucceeded {
		t.Errorf("workflow: %+v", w)
	}
	if n := len(app.Status.AppliedResources); n != 3 {
		t.Errorf("%d applied resources", n)
	}

	before := e.requests()
	e.app("shop", fmt.Sprintf(small, "shop", "w"))
	e.until("shop", func(a *oam.Application) error {
		if a.Status.LatestRevision.Name != "shop-v2" {
			return errors.New("not the second revision")
		}
		return inPhase(oam.PhaseRunning)(a)
	})
	e.eventually("the tracker of the first generation is gone", func() error {
		if n := total(less(e.requests(), before)); n < 5 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	update := less(e.requests(), before)
	e.Log("updated:", update)
	if n := total(update); n > 5 || update["create resourcetrackers"] != 1 || update["delete resourcetrackers"] != 1 {
		t.Errorf("an update of one field took %d requests: %v", n, update)
	}
	cm, err := e.get(configMaps, "shop-conf")
	if err != nil {
		t.Fatal(err)
	}
	if v, _, _ := unstructured.NestedString(cm.Object, "data", "k"); v != "w" {
		t.Errorf("the ConfigMap has %v", cm.Object["data"])
	}

	before = e.requests()
	e.delete(applications, "shop")
	e.gone(applications, "shop")
	deletion := less(e.requests(), before)
	e.Log("deleted:", deletion)
	if n := total(deletion); n > 5 {
		t.Errorf("a deletion took %d requests: %v", n, deletion)
	}
	for _, name := range []string{"shop-conf"} {
		e.gone(configMaps, name)
	}
	e.gone(deployments, "web")
	e.gone(secrets, "shop-cred")
	if list, err := e.dyn.Resource(trackers).List(t.Context(), metav1.ListOptions{LabelSelector: oam.AppNamespaceLabel + "=" + e.ns}); err != nil || len(list.Items) != 0 {
		t.Errorf("trackers remain: %v", err)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	e := start(t)
	e.app("shop", fmt.Sprintf(small, "shop", "v"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.delete(deployments, "web")
	e.eventually("the Deployment is there again", func() error { _, err := e.get(deployments, "web"); return err })
	patch := []byte(`{"data":{"k":"changed","other":"stays"}}`)
	if _, err := e.dyn.Resource(configMaps).Namespace(e.ns).Patch(t.Context(), "shop-conf", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the ConfigMap is as it was", func() error {
		cm, err := e.get(configMaps, "shop-conf")
		if err != nil {
			return err
		}
		data, _, _ := unstructured.NestedStringMap(cm.Object, "data")
		if data["k"] != "v" || data["other"] != "stays" {
			return fmt.Errorf("%v", data)
		}
		return nil
	})
}

func TestADeletionThatTakesLongEndsAllTheSame(t *testing.T) {
	e := start(t)
	e.app("shop", fmt.Sprintf(small, "shop", "v"))
	e.until("shop", inPhase(oam.PhaseRunning))
	finalizers := func(list string) {
		t.Helper()
		patch := []byte(`{"metadata":{"finalizers":` + list + `}}`)
		if _, err := e.dyn.Resource(configMaps).Namespace(e.ns).Patch(t.Context(), "shop-conf", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	finalizers(`["example.com/held"]`)
	e.delete(applications, "shop")
	// The status changes while the Application is being deleted.
	e.until("shop", says(oam.ConditionDeleting, "1 objects remain"))
	finalizers("[]")
	e.gone(applications, "shop")
}

func TestWhatLeavesTheSpecIsRemoved(t *testing.T) {
	e := start(t)
	e.app("shop", `
components:
- name: config
  type: k8s-objects
  properties:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}
`)
	e.until("shop", inPhase(oam.PhaseRunning))
	e.app("shop", `
components:
- name: config
  type: k8s-objects
  properties:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
`)
	e.gone(configMaps, "b")
	app := e.until("shop", func(a *oam.Application) error {
		if len(a.Status.AppliedResources) != 2 {
			return errors.New("not two objects")
		}
		return inPhase(oam.PhaseRunning)(a)
	})
	if app.Status.LatestRevision.Name != "shop-v2" {
		t.Errorf("revision %+v", app.Status.LatestRevision)
	}
	a, err := e.get(configMaps, "a")
	if err != nil {
		t.Fatal(err)
	}
	if data, _, _ := unstructured.NestedMap(a.Object, "data"); len(data) != 0 {
		t.Errorf("a field that left the spec is still there: %v", data)
	}
}

func TestOthersObjectsAreLeftAlone(t *testing.T) {
	e := start(t)
	e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {mine: x}}")
	spec := `
components:
- {name: config, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}]}}
`
	e.app("one", spec)
	e.until("one", says(oam.ConditionWorkflow, "ConfigMap "+e.ns+"/a exists but not managed by any application now"))
	e.app("one", spec+"policies:\n- {type: take-over, properties: {rules: [{selector: {resourceTypes: [ConfigMap]}}]}}\n")
	e.until("one", inPhase(oam.PhaseRunning))
	cm, err := e.get(configMaps, "a")
	if err != nil {
		t.Fatal(err)
	}
	if data, _, _ := unstructured.NestedStringMap(cm.Object, "data"); data["mine"] != "x" || data["k"] != "v" {
		t.Errorf("data: %v", data)
	}
	e.app("two", spec)
	e.until("two", says(oam.ConditionWorkflow, "is managed by other application "+e.ns+"/one"))
	e.delete(applications, "two")
	e.gone(applications, "two")
	if _, err := e.get(configMaps, "a"); err != nil {
		t.Errorf("the deletion of an application took another's object: %v", err)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	e := start(t)
	for _, c := range []struct {
		name, spec string
		condition  oam.ConditionType
		parts      []string
	}{
		{"no-such-type", "components: [{name: a, type: nosuch}]", oam.ConditionParsed, []string{"component a", "ComponentDefinition nosuch", "no such definition"}},
		{"no-such-trait", "components: [{name: a, type: worker, properties: {image: x}, traits: [{type: nosuch}]}]", oam.ConditionParsed, []string{"traits[0]", "TraitDefinition nosuch"}},
		{"no-image", "components: [{name: a, type: worker}]", oam.ConditionRender, []string{"component a", "parameter.image", "must be given"}},
		{"wrong-type", "components: [{name: a, type: worker, properties: {image: 5}}]", oam.ConditionRender, []string{"parameter.image", "conflicting values"}},
		{"no-such-kind", "components: [{name: a, type: k8s-objects, properties: {objects: [{apiVersion: x.y/v1, kind: Z}]}}]", oam.ConditionRender, []string{"no kind Z of x.y/v1"}},
		{"refused", "components: [{name: a, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: A_B}}]}}]", oam.ConditionWorkflow, []string{"A_B", "Invalid"}},
		{"bad-policy", "components: [{name: a, type: worker, properties: {image: x}}]\npolicies: [{type: apply-once, properties: {enabled: true}}]", oam.ConditionPolicy, []string{"spec.policies[0] (apply-once)", "enabled"}},
		{"depends", "components: [{name: a, type: worker, properties: {image: x}, dependsOn: [b]}]", oam.ConditionParsed, []string{"depends on b"}},
		{"twice", "components: [{name: a, type: worker, properties: {image: x}}, {name: b, type: k8s-objects, properties: {objects: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}]}}]", oam.ConditionRender, []string{"also made by component a"}},
	} {
		e.app(c.name, c.spec)
		e.until(c.name, says(c.condition, c.parts...))
	}
}

func TestAComponentWaitsForWhatItDependsOn(t *testing.T) {
	e := start(t)
	e.app("shop", `
components:
- {name: web, type: worker, properties: {image: nginx}, dependsOn: [db]}
- {name: db, type: worker, properties: {image: nosuchnode}, traits: [{type: json-merge-patch, properties: {spec: {template: {spec: {nodeSelector: {no: such}}}}}}]}
`)
	e.until("shop", func(a *oam.Application) error {
		if w := a.Status.Workflow; w == nil || w.Steps[0].Phase != oam.StepPending || w.Steps[1].Phase != oam.StepRunning {
			return errors.New("not pending and running")
		}
		return inPhase(oam.PhaseRunningWorkflow)(a)
	})
	if _, err := e.get(deployments, "web"); err == nil {
		t.Error("the component that waits has been made")
	}
	e.app("shop", `
components:
- {name: web, type: worker, properties: {image: nginx}, dependsOn: [db]}
- {name: db, type: worker, properties: {image: nginx}}
`)
	e.until("shop", inPhase(oam.PhaseRunning))
}

func TestARestartAtRestWritesNothing(t *testing.T) {
	e := start(t)
	e.app("shop", fmt.Sprintf(small, "shop", "v"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.app("shop", fmt.Sprintf(small, "shop", "w"))
	e.until("shop", func(a *oam.Application) error {
		if a.Status.LatestRevision.Name != "shop-v2" {
			return errors.New("not the second revision")
		}
		return inPhase(oam.PhaseRunning)(a)
	})
	e.trackersAre("shop", "shop-v2:shop-conf,shop-cred,web")
	before := e.requests()
	// A second controller finds every object as it should be, and writes nothing.
	stop, err := runController(e.c)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	e.app("later", fmt.Sprintf(`
components:
- {name: later, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}}]}}
`, "later"))
	e.until("later", inPhase(oam.PhaseRunning))
	after := less(e.requests(), before)
	for what, n := range after {
		switch what {
		case "create configmaps", "create resourcetrackers", "create applicationrevisions", "update applications/status", "patch applications/status", "get configmaps", "get resourcetrackers":
		default:
			t.Errorf("%s: %d", what, n)
		}
	}
}

// late is a writer that reports the outcome of a status write some time after the server's answer,
// when the watch has long shown the new status.
type late struct{ apiwriter.Writer }

func (l late) Status(m apiwriter.Meta, obj apiwriter.Object, urgent bool, done func(apiwriter.Object, error)) {
	l.Writer.Status(m, obj, urgent, func(o apiwriter.Object, err error) {
		time.AfterFunc(300*time.Millisecond, func() { done(o, err) })
	})
}

// TestAllComeToRest changes several Applications at once, some of them again before they are idle.
// Watch events arrive before and after the answers to writes, and no Application may wait for an
// event that never comes.
func TestAllComeToRest(t *testing.T) {
	for _, c := range []struct {
		name    string
		rest    time.Duration
		through func(apiwriter.Writer) apiwriter.Writer
	}{
		{"at once", 20 * time.Millisecond, func(w apiwriter.Writer) apiwriter.Writer { return w }},
		{"after a change during the time that it takes", 2 * time.Second, func(w apiwriter.Writer) apiwriter.Writer { return w }},
		{"when answers come after what the watch shows", 20 * time.Millisecond, func(w apiwriter.Writer) apiwriter.Writer { return late{w} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := connect(t)
			elsewhere.Store(e.ns, true)
			registry := prometheus.NewRegistry()
			stop, err := runWith(e.c, controller.Config{IdleAfter: c.rest, Metrics: registry, Owns: e.owns}, c.through)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			for _, value := range []string{"v", "w"} {
				for i := range 8 {
					name := fmt.Sprintf("app-%d", i)
					e.app(name, fmt.Sprintf(strings.Replace(small, "name: web", "name: %[1]s", 1), name, value))
				}
				for i := range 8 {
					e.until(fmt.Sprintf("app-%d", i), inPhase(oam.PhaseRunning))
				}
			}
			e.noneAwake(registry)
		})
	}
}

// TestWhatCannotBeReadOfAStatusIsWrittenAnew checks that a status that cannot be decoded is
// overwritten: the server accepts times that clients cannot decode.
func TestWhatCannotBeReadOfAStatusIsWrittenAnew(t *testing.T) {
	e := start(t)
	e.app("shop", fmt.Sprintf(small, "shop", "v"))
	e.until("shop", inPhase(oam.PhaseRunning))
	e.eventually("a status that cannot be read", func() error {
		_, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(t.Context(), "shop", types.JSONPatchType, []byte(
			`[{"op": "replace", "path": "/status/conditions/0/lastTransitionTime", "value": "2026-01-02t03:04:05z"}]`), metav1.PatchOptions{}, "status")
		return err
	})
	e.app("shop", fmt.Sprintf(small, "shop", "w"))
	e.eventually("a status that can be read", func() error {
		u, err := e.get(applications, "shop")
		if err != nil {
			return err
		}
		var a oam.Application
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &a); err != nil {
			return err
		}
		return inPhase(oam.PhaseRunning)(&a)
	})
}

func TestUsersDefinitionsWork(t *testing.T) {
	e := start(t)
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: greeting}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  status:
    customStatus: 'message: "says " + context.output.data.text'
    healthPolicy: 'isHealth: context.output.data.text != ""'
    details: |
      length: len(context.output.data.text)
  schematic:
    cue:
      template: |
        import "strings"
        output: {
          apiVersion: "v1"
          kind: "ConfigMap"
          data: text: strings.ToUpper(parameter.text)
        }
        parameter: text: string
`)
	e.app("hello", "components: [{name: hi, type: greeting, properties: {text: hello}}]")
	app := e.until("hello", inPhase(oam.PhaseRunning))
	if s := app.Status.Services[0]; s.Message != "says HELLO" || s.Details["length"] != "5" {
		t.Errorf("service: %+v", s)
	}
	// A definition that is created later is found.
	e.app("later", "components: [{name: x, type: latecomer}]")
	e.until("later", says(oam.ConditionParsed, "latecomer"))
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: latecomer}
spec:
  workload: {type: autodetects.core.oam.dev}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "ConfigMap"}'}}
`)
	e.until("later", inPhase(oam.PhaseRunning))
}
