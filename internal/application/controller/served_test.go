package controller_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
)

// refuseUnserved installs the policy on definitions with kinds that are not served, for the test's
// namespace, and what it needs.
func (e *env) refuseUnserved() {
	e.Helper()
	for _, o := range config.ServedKinds() {
		if o.GetKind() == "ValidatingAdmissionPolicyBinding" {
			o.Object["spec"].(map[string]any)["matchResources"] = map[string]any{
				"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": e.ns}},
			}
		}
		plural := strings.Replace(strings.ToLower(o.GetKind())+"s", "ys", "ies", 1)
		var r dynamic.ResourceInterface = e.dyn.Resource(o.GroupVersionKind().GroupVersion().WithResource(plural))
		if ns := o.GetNamespace(); ns != "" {
			r = r.(dynamic.NamespaceableResourceInterface).Namespace(ns)
		}
		if _, err := r.Create(e.Context(), o, metav1.CreateOptions{}); err != nil {
			e.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		e.Cleanup(func() {
			if err := r.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				e.Error(err)
			}
		})
	}
}

// wouldCreate asks the API server whether it would create a definition.
func (e *env) wouldCreate(o *unstructured.Unstructured) error {
	_, err := e.definitions(o).Create(e.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (e *env) definitions(o *unstructured.Unstructured) dynamic.ResourceInterface {
	gvr := o.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(o.GetKind()) + "s")
	return e.dyn.Resource(gvr).Namespace(e.ns)
}

// TestDefinitionsWithKindsThatAreNotServedAreRefused checks which definitions the API server refuses by
// the kinds of their outputs, that it follows CustomResourceDefinitions, and that what was stored
// before stays changeable.
func TestDefinitionsWithKindsThatAreNotServedAreRefused(t *testing.T) {
	e := start(t)
	text, err := os.ReadFile("testdata/unserved-kinds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Definition string         `json:"definition"`
		Refused    []string       `json:"refused"`
		Object     map[string]any `json:"object"`
	}
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	objects := map[string]*unstructured.Unstructured{}
	for _, c := range cases {
		objects[c.Definition] = &unstructured.Unstructured{Object: c.Object}
	}
	gadget, newer := objects["a kind that a CustomResourceDefinition defines"], objects["a version of that kind that it does not have"]
	stored := objects["a part of no addon"]
	if _, err := e.definitions(stored).Create(t.Context(), stored, metav1.CreateOptions{}); err != nil {
		t.Fatal(err) // nothing is refused yet
	}
	e.refuseUnserved()

	e.eventually("definitions are refused", func() error {
		if err := e.wouldCreate(newer); err == nil {
			return fmt.Errorf("it is accepted")
		}
		return nil
	})
	if err := e.wouldCreate(gadget); err == nil || !apierrors.IsInvalid(err) {
		t.Errorf("before its kind exists: %v", err)
	}
	removeKind := e.cluster(crds, fmt.Sprintf(gadgetKind, "served.example.org"))
	e.eventually("the list of kinds has the new one", func() error { return e.wouldCreate(gadget) })
	for _, c := range cases {
		o := objects[c.Definition]
		if c.Definition == "a part of no addon" {
			o = o.DeepCopy()
			o.SetName("of-none-again")
		}
		err := e.wouldCreate(o)
		if (err != nil) != (len(c.Refused) > 0) {
			t.Errorf("%s: %v", c.Definition, err)
			continue
		}
		for _, part := range c.Refused {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is not in %v", c.Definition, part, err)
			}
		}
	}

	// A definition that is stored can be changed, but for its template.
	patch := func(data string) error {
		_, err := e.definitions(stored).Patch(t.Context(), stored.GetName(), types.MergePatchType, []byte(data), metav1.PatchOptions{})
		return err
	}
	if err := patch(`{"metadata": {"labels": {"team": "a"}}, "spec": {"appliesToWorkloads": ["deployments.apps"]}}`); err != nil {
		t.Errorf("a label of a stored definition: %v", err)
	}
	const template = `{"spec": {"schematic": {"cue": {"template": "outputs: a: {apiVersion: \"%s\", kind: \"%s\"}"}}}}`
	if err := patch(fmt.Sprintf(template, "v1", "Service")); err != nil {
		t.Errorf("a template with a kind that is served: %v", err)
	}
	if err := patch(fmt.Sprintf(template, "widgets.example.org/v1", "Ghost")); !apierrors.IsInvalid(err) {
		t.Errorf("a template with a kind that is not served: %v", err)
	}

	removeKind()
	e.eventually("the list of kinds lacks what is removed", func() error {
		if err := e.wouldCreate(gadget); err == nil {
			return fmt.Errorf("it is accepted")
		}
		return nil
	})
	// Without the list nothing is refused.
	list := e.dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(oam.SystemNamespace)
	if err := list.Delete(t.Context(), config.ServedKindsName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("nothing is refused", func() error { return e.wouldCreate(gadget) })
}
