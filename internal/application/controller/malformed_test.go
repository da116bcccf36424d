package controller_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestMalformedApplicationsEndAndSayWhy checks that every application of testdata/malformed.yaml is
// refused, or comes to an end and says why in a condition or a step, and that nothing is written about
// any of them from then on: while another one fails, which takes ten tries over two minutes.
func TestMalformedApplicationsEndAndSayWhy(t *testing.T) {
	e := connect(t)
	e.fast()
	text, err := os.ReadFile("testdata/malformed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Application string            `json:"application"`
		Reason      string            `json:"reason"`
		Annotations map[string]string `json:"annotations"`
		Spec        map[string]any    `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	stored := map[string]string{} // the reasons of those that the API server has accepted
	for i, c := range cases {
		app := &unstructured.Unstructured{Object: map[string]any{"spec": c.Spec}}
		app.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
		app.SetName(fmt.Sprintf("app-%d-%s", i, strings.ReplaceAll(strings.ToLower(c.Application), " ", "-")))
		app.SetAnnotations(c.Annotations)
		switch _, err := e.dyn.Resource(applications).Namespace(e.ns).Create(t.Context(), app, metav1.CreateOptions{}); {
		case err == nil:
			stored[app.GetName()] = c.Reason
		case !strings.Contains(err.Error(), c.Reason):
			t.Errorf("%s: %q is not in the refusal: %v", c.Application, c.Reason, err)
		}
	}
	if len(stored) < 25 {
		t.Errorf("only %d applications are left to the controller", len(stored))
	}
	e.eventually("all end and say why", func() error {
		var errs []error
		for name, reason := range stored {
			if err := endedBecause(e.application(name), reason); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(errs...)
	})

	writes := func(about func(localtest.Call) bool) (out []string) {
		for _, call := range localtest.ManagerCalls(t, e.c) {
			if call.Write() && call.Namespace == e.ns && about(call) {
				out = append(out, call.Verb+" "+call.Resource+" "+call.Name)
			}
		}
		return out
	}
	ofTheirs := func(c localtest.Call) bool { return strings.HasPrefix(c.Name, "app-") }
	before := writes(ofTheirs)
	if len(before) > 6*len(stored) {
		t.Errorf("%d writes about %d applications: %v", len(before), len(stored), before)
	}
	e.app("later", "components:\n- {name: one, type: none, properties: {}}\n")
	e.until("later", inPhase(oam.PhaseWorkflowFailed))
	if after := writes(ofTheirs); len(after) > len(before) {
		t.Errorf("written at rest: %v", after[len(before):])
	}
}

// endedBecause returns an error unless an Application has come to an end, and a condition or a step says
// why.
func endedBecause(a *oam.Application, reason string) error {
	if p := a.Status.Phase; a.Status.ObservedGeneration != a.Generation ||
		p != oam.PhaseWorkflowFailed && (p != oam.PhaseRunning || a.Status.Workflow == nil) {
		return fmt.Errorf("it is %s", p)
	}
	var said []string
	for _, c := range a.Status.Conditions {
		if c.Status == "False" {
			said = append(said, c.Message)
		}
	}
	if w := a.Status.Workflow; w != nil {
		for i := range w.Steps {
			said = append(said, w.Steps[i].Message)
		}
	}
	if !strings.Contains(strings.Join(said, "\n"), reason) {
		return fmt.Errorf("%q is not in %q", reason, said)
	}
	return nil
}
