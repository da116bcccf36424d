package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

var (
	crds         = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	clusterRoles = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
)

// cluster creates an object without a namespace until the test ends.
func (e *env) cluster(gvr schema.GroupVersionResource, manifest string) (remove func()) {
	e.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		e.Fatalf("%v: %s", err, manifest)
	}
	if _, err := e.dyn.Resource(gvr).Create(e.Context(), u, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	remove = func() { _ = e.dyn.Resource(gvr).Delete(context.Background(), u.GetName(), metav1.DeleteOptions{}) }
	e.Cleanup(remove)
	return remove
}

// gadgetKind is the definition of the kind Gadget of a group.
const gadgetKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget, listKind: GadgetList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// gadgets serves a kind that no role of the manager names.
func (e *env) gadgets() (group string, gadgets schema.GroupVersionResource) {
	e.Helper()
	group = e.ns + ".example"
	e.cluster(crds, fmt.Sprintf(gadgetKind, group))
	gadgets = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "gadgets"}
	e.eventually("the kind is served", func() error {
		_, err := e.dyn.Resource(gadgets).Namespace(e.ns).List(e.Context(), metav1.ListOptions{})
		return err
	})
	return group, gadgets
}

// manifestIn returns the manifest of a ClusterRole in the message of a condition.
func manifestIn(a *oam.Application, t oam.ConditionType) string {
	for _, c := range a.Status.Conditions {
		if from := strings.Index(c.Message, "{apiVersion:"); c.Type == t && from >= 0 {
			return c.Message[from : strings.Index(c.Message, "}]}")+len("}]}")]
		}
	}
	return ""
}

// TestADeletionEndsOrSaysWhichRightIsMissing checks Applications with a kind that the manager may not
// watch: the condition has the manifest that gives the right, and a deletion ends at once if the
// object was never made, and otherwise when the manager has the right.
func TestADeletionEndsOrSaysWhichRightIsMissing(t *testing.T) {
	e := connect(t)
	stop := e.fast()
	group, gadgets := e.gadgets()
	gadget := "components:\n- {name: one, type: k8s-objects, properties: {objects: [{apiVersion: " + group + "/v1, kind: Gadget, metadata: {name: %s}}]}}\n"
	e.app("a", fmt.Sprintf(gadget, "never"))
	app := e.until("a", both(inPhase(oam.PhaseWorkflowFailed), says(oam.ConditionReady, "gadgets cannot be watched", "forbidden", oam.AggregateLabel, "--any-kind")))
	e.delete(applications, "a")
	e.gone(applications, "a")

	role := manifestIn(app, oam.ConditionReady)
	revoke := e.cluster(clusterRoles, role)
	e.app("b", fmt.Sprintf(gadget, "made"))
	e.until("b", inPhase(oam.PhaseRunning))
	stop()
	revoke()
	e.eventually("the right is revoked", func() error {
		all, err := e.dyn.Resource(clusterRoles).Get(e.Context(), "lockstep-manager-application-kinds", metav1.GetOptions{})
		if rules, _ := yaml.Marshal(all.Object["rules"]); err == nil && strings.Contains(string(rules), group) {
			err = fmt.Errorf("the role still has it: %s", rules)
		}
		return err
	})
	e.fast()
	e.delete(applications, "b")
	app = e.until("b", says(oam.ConditionDeleting, "gadgets cannot be watched", oam.AggregateLabel))
	if _, err := e.dyn.Resource(gadgets).Namespace(e.ns).Get(t.Context(), "made", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	e.cluster(clusterRoles, manifestIn(app, oam.ConditionDeleting))
	e.gone(applications, "b")
	e.gone(gadgets, "made")
}

// TestAStepWaitsForTheKindOfItsObjects checks steps whose kind is defined after they have begun: they
// go on when the API server serves it. The definition may be an object of an earlier component.
func TestAStepWaitsForTheKindOfItsObjects(t *testing.T) {
	e := start(t)
	group := e.ns + ".example"
	e.cluster(clusterRoles, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %s, labels: {%s: "true"}}
rules: [{apiGroups: [%s], resources: [gadgets], verbs: ["*"]}]
`, group, oam.AggregateLabel, group))
	gadget := "- {name: %[2]s, type: k8s-objects, properties: {objects: [{apiVersion: %[1]s/v1, kind: Gadget, metadata: {name: %[2]s}}]}}\n"
	e.app("alone", fmt.Sprintf("components:\n"+gadget+`
workflow: {steps: [{name: make, type: apply-component, properties: {component: %[2]s}}]}
`, group, "alone"))
	e.app("beside", fmt.Sprintf(withComponents("", "one")+gadget+`
workflow: {steps: [{name: make, type: deploy}]}
`, group, "beside"))
	for _, name := range []string{"alone", "beside"} {
		e.until(name, both(inPhase(oam.PhaseRunningWorkflow), func(a *oam.Application) error {
			if s := a.Status.Workflow.Steps; len(s) != 1 || !strings.Contains(s[0].Message, "the API server has no kind Gadget") {
				return fmt.Errorf("the steps are %+v", s)
			}
			return nil
		}))
	}
	e.cluster(crds, fmt.Sprintf(gadgetKind, group))
	for _, name := range []string{"alone", "beside"} {
		e.until(name, both(inPhase(oam.PhaseRunning), hasSteps("make=succeeded")))
	}
}
