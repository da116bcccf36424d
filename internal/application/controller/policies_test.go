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

// TestPoliciesGiveLabelsAndAnnotations checks policies of the scope Application: one that an Application
// names, with its context, and global ones. What they give is on the Application, its author stays the
// author, templates see it, and it changes with the Application and not with the definitions.
func TestPoliciesGiveLabelsAndAnnotations(t *testing.T) {
	e := start(t)
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: PolicyDefinition
metadata: {name: team}
spec:
  scope: Application
  schematic:
    cue:
      template: |
        parameter: team: string
        output: {
        	labels: "example.com/team": parameter.team
        	annotations: "example.com/by": "\(context.policyName) \(context.policyType) \(context.policyRevision) \(context.policyRevisionName) of \(context.appName)"
        }
`)
	e.eventually("the definition has its revision in the status", func() error {
		u, err := e.get(oam.GroupVersion.WithResource("policydefinitions"), "team")
		if err != nil {
			return err
		}
		if name, _, _ := unstructured.NestedString(u.Object, "status", "latestRevision", "name"); name != "team-v1" {
			return fmt.Errorf("it is %q", name)
		}
		return nil
	})
	global := func(name, priority, value string) {
		e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: PolicyDefinition
metadata: {name: ` + name + `}
spec:
  scope: Application
  global: true
  priority: ` + priority + `
  schematic: {cue: {template: 'output: labels: {"example.com/level": "` + value + `", "example.com/` + name + `": "yes"}'}}
`)
	}
	global("high", "10", "high")
	global("low", "1", "low")
	has := func(labels map[string]string) func(*oam.Application) error {
		return func(a *oam.Application) error {
			for key, value := range labels {
				if got, ok := a.Labels[key]; value == "" && ok || value != "" && got != value {
					return fmt.Errorf("its labels are %v, want %s: %q", a.Labels, key, value)
				}
			}
			return inPhase(oam.PhaseRunning)(a)
		}
	}
	const shop = "apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: shop}\nspec:\n  components:\n" +
		"  - {name: shop, type: labelled, properties: {value: %s}}\n  policies: [{name: owner, type: team, properties: {team: %s}}]\n"
	e.apply(`
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: labelled}
spec:
  workload: {type: autodetects.core.oam.dev}
  schematic:
    cue:
      template: |
        parameter: value: string
        output: {apiVersion: "v1", kind: "ConfigMap", data: {v: parameter.value, team: context.appLabels["example.com/team"]}}
`)
	author := e.apply(fmt.Sprintf(shop, "one", "blue")).GetAnnotations()[oam.UsernameAnnotation]
	app := e.until("shop", has(map[string]string{"example.com/team": "blue", "example.com/level": "low", "example.com/high": "yes", "example.com/low": "yes"}))
	if got, want := app.Annotations["example.com/by"], "owner team 1 team-v1 of shop"; got != want {
		t.Errorf("the annotation is %q, want %q", got, want)
	}
	if user := app.Annotations[oam.UsernameAnnotation]; user == "" || user != author {
		t.Errorf("its author is %q, and was %q", user, author)
	}
	if r := e.requests(); r["create configmaps"] != 1 || r["patch configmaps"] != 0 || r["patch applications"] != 1 {
		t.Errorf("requests %v", r)
	}
	if d := e.data("shop"); d["team"] != "blue" {
		t.Errorf("the template saw %v", d)
	}
	// Definitions are followed when the Application changes.
	e.dyn.Resource(oam.GroupVersion.WithResource("policydefinitions")).Namespace(e.ns).Delete(t.Context(), "high", metav1.DeleteOptions{})
	global("low", "1", "lower")
	e.eventually("the second revision", func() error {
		_, err := e.get(oam.GroupVersion.WithResource("definitionrevisions"), "low-v2")
		return err
	})
	if err := has(map[string]string{"example.com/level": "low"})(e.application("shop")); err != nil {
		t.Error(err)
	}
	e.apply(fmt.Sprintf(shop, "two", "green"))
	e.until("shop", has(map[string]string{"example.com/team": "green", "example.com/level": "lower"}))
	// What somebody removes comes again.
	remove := []byte(`{"metadata":{"labels":{"example.com/team":null}}}`)
	if _, err := e.dyn.Resource(applications).Namespace(e.ns).Patch(t.Context(), "shop", types.MergePatchType, remove, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.until("shop", has(map[string]string{"example.com/team": "green"}))
	// An Application may go without global policies.
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: plain, annotations: {policy.oam.dev/skip-global: \"true\"}}\nspec:\n" + indent(withComponents("", "plain")))
	e.until("plain", has(map[string]string{"example.com/level": "", "example.com/low": ""}))
}

// TestPoliciesThatGiveSomethingElseAreRefused checks policies of the scope Application that would change
// more than labels and annotations, or those by which applications are commanded.
func TestPoliciesThatGiveSomethingElseAreRefused(t *testing.T) {
	e := start(t)
	for name, c := range map[string]struct{ template, want string }{
		"objects":    {`output: {apiVersion: "v1", kind: "ConfigMap"}`, "output.apiVersion: a policy of the scope Application gives labels and annotations, and nothing else"},
		"components": {`output: components: []`, "output.components: a policy of the scope Application gives labels and annotations, and nothing else"},
		"more":       {`outputs: x: {apiVersion: "v1", kind: "ConfigMap"}`, "outputs: a policy of the scope Application makes no objects"},
		"account":    {`output: annotations: "app.oam.dev/service-account-name": "admin"`, "output.annotations: app.oam.dev/service-account-name: labels and annotations of oam.dev are not given by policies"},
		"pause":      {`output: labels: "controller.core.oam.dev/pause": "true"`, "output.labels: controller.core.oam.dev/pause: labels and annotations of oam.dev are not given by policies"},
		"command":    {`output: annotations: "lockstep.dev/workflow-command": "terminate"`, "output.annotations: lockstep.dev/workflow-command: labels and annotations of lockstep.dev are not given by policies"},
		"value":      {`output: labels: "example.com/x": "not a value"`, "output.labels: example.com/x: a valid label must be"},
		"number":     {`output: labels: "example.com/x": 1`, "output.labels: example.com/x is not a string"},
	} {
		e.apply("apiVersion: core.oam.dev/v1beta1\nkind: PolicyDefinition\nmetadata: {name: " + name + "}\nspec: {scope: Application, schematic: {cue: {template: '" + c.template + "'}}}")
		e.app(name, withComponents("", name)+"policies: [{name: p, type: "+name+"}]\n")
		e.until(name, says(oam.ConditionReady, "policy p: "+c.want))
		if _, err := e.get(configMaps, name); err == nil {
			t.Errorf("%s: the object was made", name)
		}
	}
	for spec, want := range map[string]string{
		`{"global":true}`:  "global policies are of the scope Application",
		`{"global":false}`: "",
		`{"scope":"Application","global":true,"priority":7}`: "",
	} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(`{"apiVersion":"core.oam.dev/v1beta1","kind":"PolicyDefinition","metadata":{"name":"dry"},"spec":` + spec + `}`)); err != nil {
			t.Fatal(err)
		}
		_, err := e.dyn.Resource(oam.GroupVersion.WithResource("policydefinitions")).Namespace(e.ns).Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", spec, err, want)
		}
	}
	// A global policy is not named, too.
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: PolicyDefinition\nmetadata: {name: everywhere}\nspec: {scope: Application, global: true, schematic: {cue: {template: 'output: labels: x: \"y\"'}}}")
	e.app("twice", withComponents("", "twice")+"policies: [{name: p, type: everywhere}]\n")
	e.until("twice", says(oam.ConditionReady, "spec.policies[0]: everywhere is global: applications have it without naming it"))
}

// TestTheTypeOfAWorkloadIsFilledIn checks what the API server and the manager add to the definition of a
// component.
func TestTheTypeOfAWorkloadIsFilledIn(t *testing.T) {
	e := start(t)
	definitions := oam.GroupVersion.WithResource("componentdefinitions")
	for name, c := range map[string]struct{ workload, want, version string }{
		"of-a-kind":   {"{definition: {apiVersion: apps/v1, kind: Deployment}}", "deployments.apps", "v1"},
		"of-a-policy": {"{definition: {apiVersion: networking.k8s.io/v1, kind: NetworkPolicy}}", "networkpolicies.networking.k8s.io", "v1"},
		"of-an-s":     {"{definition: {apiVersion: networking.k8s.io/v1, kind: Ingress}}", "ingresses.networking.k8s.io", "v1"},
		"of-the-core": {"{definition: {apiVersion: v1, kind: ConfigMap}}", "configmaps", "v1"},
		"of-nothing":  {"{}", "autodetects.core.oam.dev", ""},
		"empty":       {"{definition: {apiVersion: '', kind: ''}}", "autodetects.core.oam.dev", ""},
		"given":       {"{type: my.types.example.com}", "my.types.example.com", ""},
	} {
		e.apply("apiVersion: core.oam.dev/v1beta1\nkind: ComponentDefinition\nmetadata: {name: " + name + "}\nspec: {workload: " + c.workload + ", schematic: {cue: {template: 'output: {}'}}}")
		u, err := e.get(definitions, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(u.Object, "spec", "workload", "type"); got != c.want {
			t.Errorf("%s: the type is %q, want %q", name, got, c.want)
		}
		e.eventually("revision of "+name, func() error {
			u, err := e.get(definitions, name)
			if err != nil {
				return err
			}
			if got, _, _ := unstructured.NestedString(u.Object, "status", "latestRevision", "name"); got != name+"-v1" {
				return fmt.Errorf("the newest revision is %q", got)
			}
			return nil
		})
		if c.version == "" {
			continue
		}
		e.eventually("workload of "+name, func() error {
			w, err := e.get(oam.GroupVersion.WithResource("workloaddefinitions"), c.want)
			if err != nil {
				return err
			}
			ref, _, _ := unstructured.NestedStringMap(w.Object, "spec", "definitionRef")
			if ref["name"] != c.want || ref["version"] != c.version {
				return fmt.Errorf("it is %v", ref)
			}
			return nil
		})
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
