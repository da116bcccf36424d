package controller_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// configs returns the spec of an Application of ConfigMaps with the given names, and policies.
func configs(policies string, names ...string) string {
	spec := "components:\n- name: config\n  type: k8s-objects\n  properties:\n    objects:\n"
	for _, n := range names {
		spec += fmt.Sprintf("    - {apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {k: v, l: v}}\n", n)
	}
	return spec + "policies:\n" + policies + "\n"
}

const everyConfigMap = "rules: [{selector: {resourceTypes: [ConfigMap]}}]"

func (e *env) data(name string) map[string]string {
	e.Helper()
	cm, err := e.get(configMaps, name)
	if err != nil {
		e.Fatal(err)
	}
	data, _, _ := unstructured.NestedStringMap(cm.Object, "data")
	return data
}

func (e *env) patchData(name, patch string) {
	e.Helper()
	if _, err := e.dyn.Resource(configMaps).Namespace(e.ns).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

func TestApplyOnceKeepsTheFieldsOfItsRules(t *testing.T) {
	e := start(t)
	e.app("a", configs("- {type: apply-once, properties: {enable: true, rules: [{selector: {resourceTypes: [ConfigMap]}, strategy: {path: [data.k]}}]}}", "a"))
	e.until("a", inPhase(oam.PhaseRunning))
	e.patchData("a", `{"data":{"k":"mine","l":"mine"}}`)
	e.eventually("the field without a rule is as it was", func() error {
		if d := e.data("a"); d["l"] != "v" || d["k"] != "mine" {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
}

func TestWhatIsNeverCollectedStays(t *testing.T) {
	e := start(t)
	policy := "- {type: garbage-collect, properties: {rules: [{selector: {resourceNames: [kept]}, strategy: never}]}}"
	e.app("a", configs(policy, "kept", "dropped", "a"))
	e.until("a", inPhase(oam.PhaseRunning))
	e.app("a", configs(policy, "a"))
	e.gone(configMaps, "dropped")
	e.data("kept")
}

func TestASharedObjectIsHandedOver(t *testing.T) {
	e := start(t)
	policy := "- {type: shared-resource, properties: {" + everyConfigMap + "}}"
	e.app("one", configs(policy, "shared"))
	e.until("one", inPhase(oam.PhaseRunning))
	e.app("two", configs(policy, "shared"))
	e.until("two", inPhase(oam.PhaseRunning))
	e.delete(applications, "one")
	e.gone(applications, "one")
	e.eventually("the object is the other's", func() error {
		cm, err := e.get(configMaps, "shared")
		if err == nil && cm.GetLabels()[oam.AppNameLabel] != "two" {
			err = fmt.Errorf("labels %v", cm.GetLabels())
		}
		return err
	})
	e.delete(applications, "two")
	e.gone(applications, "two")
	e.gone(configMaps, "shared")
}

func TestReadOnlyObjectsAreNeitherMadeNorRemoved(t *testing.T) {
	e := start(t)
	e.app("a", configs("- {type: read-only, properties: {"+everyConfigMap+"}}", "theirs"))
	e.until("a", says(oam.ConditionWorkflow, "theirs does not exist", "read-only"))
	e.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: theirs}, data: {x: z}}")
	e.delete(applications, "a")
	e.gone(applications, "a")
	if d := e.data("theirs"); d["x"] != "z" || len(d) != 1 {
		t.Errorf("data %v", d)
	}
}

func TestAPublishVersionPins(t *testing.T) {
	e := start(t)
	manifest := func(version, value string) string {
		return fmt.Sprintf(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: a, annotations: {app.oam.dev/publishVersion: %s}}
spec: {components: [{name: c, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: %s}}]}}]}
`, version, value)
	}
	e.apply(manifest("alpha", "old"))
	e.until("a", inPhase(oam.PhaseRunning))
	e.apply(manifest("alpha", "new"))
	e.until("a", inPhase(oam.PhaseRunning))
	if d := e.data("a"); d["k"] != "old" {
		t.Errorf("a change of the spec went out: %v", d)
	}
	e.apply(manifest("beta", "new"))
	e.eventually("the change is out", func() error {
		if d := e.data("a"); d["k"] != "new" {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
}

func TestLabelsThatWereTakenOffAreBack(t *testing.T) {
	e := start(t)
	e.app("a", "components: [{name: c, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]}}]")
	e.until("a", inPhase(oam.PhaseRunning))
	e.patchData("a", `{"metadata":{"labels":null}}`)
	e.eventually("the labels are back", func() error {
		cm, err := e.get(configMaps, "a")
		if err == nil && cm.GetLabels()[oam.AppNameLabel] != "a" {
			err = fmt.Errorf("labels %v", cm.GetLabels())
		}
		return err
	})
	e.delete(applications, "a")
	e.gone(applications, "a")
	e.gone(configMaps, "a")
}

// TestRemovalInTheOrderOfDependencies checks that a component is removed after the components that
// depend on it, when components leave the Application and when the Application is deleted.
func TestRemovalInTheOrderOfDependencies(t *testing.T) {
	e := start(t)
	spec := func(components string) string {
		return "components: [" + components + "]\npolicies: [{name: gc, type: garbage-collect, properties: {order: dependency}}]"
	}
	component := func(name, dependsOn string) string {
		return fmt.Sprintf("{name: %[1]s, type: k8s-objects, dependsOn: [%[2]s], properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s}}]}}", name, dependsOn)
	}
	const held = `{"metadata":{"finalizers":["test.lockstep.dev/held"]}}`
	all := []string{component("base", ""), component("middle", "base"), component("top", "middle"), component("beside", "")}
	e.app("a", spec(strings.Join(all, ",")))
	e.until("a", inPhase(oam.PhaseRunning))
	e.patchData("top", held)
	e.app("a", spec(all[0]+","+all[1]))
	e.gone(configMaps, "beside")
	e.until("a", inPhase(oam.PhaseRunning))
	e.patchData("middle", held)
	e.delete(applications, "a")
	// The number of remaining objects is reported after a turn has counted them.
	remain := func(n int) {
		t.Helper()
		e.until("a", func(a *oam.Application) error {
			for _, c := range a.Status.Conditions {
				if c.Type == oam.ConditionDeleting && c.Message == fmt.Sprintf("%d objects remain", n) {
					return nil
				}
			}
			return fmt.Errorf("conditions %v", a.Status.Conditions)
		})
	}
	remain(3)
	deleting := func(name string, want bool) {
		t.Helper()
		cm, err := e.get(configMaps, name)
		if err != nil || (cm.GetDeletionTimestamp() != nil) != want {
			t.Errorf("%s: being deleted %t, want %t: %v", name, !want, want, err)
		}
	}
	deleting("top", true)
	deleting("middle", false)
	deleting("base", false)
	e.patchData("top", `{"metadata":{"finalizers":null}}`)
	remain(2)
	deleting("middle", true)
	deleting("base", false)
	e.patchData("middle", `{"metadata":{"finalizers":null}}`)
	e.gone(configMaps, "base")
	e.gone(applications, "a")
}

// TestPoliciesThatChangeApplicationsAreRefused checks that the API server refuses definitions of policies
// that would change applications before they are deployed, or would be a part of all applications.
func TestPoliciesThatChangeApplicationsAreRefused(t *testing.T) {
	e := connect(t)
	for spec, want := range map[string]string{
		`{"scope":"Application"}`: `spec.scope: Invalid value: "Application": policies that change applications before they are deployed (scope: Application) are not supported`,
		`{"global":true}`:         "spec.global: Invalid value: true: policies of all applications (global: true) are not supported",
		`{"scope":"WorkflowRun"}`: "",
		`{"global":false}`:        "",
	} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(`{"apiVersion":"core.oam.dev/v1beta1","kind":"PolicyDefinition","metadata":{"generateName":"p-"},"spec":` + spec + `}`)); err != nil {
			t.Fatal(err)
		}
		_, err := e.dyn.Resource(oam.GroupVersion.WithResource("policydefinitions")).Namespace(e.ns).Create(t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationIgnore})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", spec, err, want)
		}
	}
}

// TestContradictoryDefinitionsAreRefused checks that the API server refuses a definition that names its
// revision twice, or its workload in two ways that differ, also by an update.
func TestContradictoryDefinitionsAreRefused(t *testing.T) {
	e := connect(t)
	r := e.dyn.Resource(oam.GroupVersion.WithResource("componentdefinitions")).Namespace(e.ns)
	create := func(metadata, spec string, dryRun ...string) error {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		manifest := "apiVersion: core.oam.dev/v1beta1\nkind: ComponentDefinition\nmetadata: " + metadata + "\nspec: " + spec
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			t.Fatal(err)
		}
		_, err := r.Create(t.Context(), u, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	const named = `{name: twice, annotations: {definitionrevision.oam.dev/name: 1.0.0}}`
	e.eventually("two names of a revision are refused", func() error { // once the policy is in force
		err := create(named, `{workload: {type: deployments.apps}, version: 1.0.0}`, metav1.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "only one of them can be set") {
			return fmt.Errorf("the API server says %w", err)
		}
		return nil
	})
	if err := create(named, `{workload: {type: deployments.apps}}`); err != nil {
		t.Error(err)
	}
	_, err := r.Patch(t.Context(), "twice", types.MergePatchType, []byte(`{"spec": {"version": "1.0.1"}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "only one of them can be set") {
		t.Errorf("an update that names the revision again: %v", err)
	}
	err = create(`{name: other}`, `{workload: {type: jobs.batch, definition: {apiVersion: apps/v1, kind: Deployment}}}`)
	if err == nil || !strings.Contains(err.Error(), "spec.workload.type: jobs.batch is of another API group than spec.workload.definition, apps/v1") {
		t.Errorf("two workloads: %v", err)
	}
	if err := create(`{name: same}`, `{workload: {type: deployments.apps, definition: {apiVersion: apps/v1, kind: Deployment}}}`); err != nil {
		t.Error(err)
	}
}
