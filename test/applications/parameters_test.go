package applications

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// heard collects the warnings of an API server.
type heard struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.texts = append(h.texts, text)
}

// take returns the warnings since the last call.
func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.texts
	h.texts = nil
	return out
}

// TestWrongParametersAreWarnedOf applies applications as users do, and compares the warnings that the
// API server answers with.
func TestWrongParametersAreWarnedOf(t *testing.T) {
	w := open(t)
	ns := localtest.Namespace(t, w.core)
	h := &heard{}
	cfg := rest.CopyConfig(w.c.RESTConfig())
	cfg.WarningHandler = h
	apps := dynamic.NewForConfigOrDie(cfg).Resource(oam.GroupVersion.WithResource("applications")).Namespace(ns)
	data, err := os.ReadFile("testdata/warnings/parameters.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name string         `json:"name"`
		Spec map[string]any `json:"spec"`
		Says []string       `json:"says"`
	}
	if err := yaml.UnmarshalStrict(data, &cases); err != nil {
		t.Fatal(err)
	}
	app := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": oam.GroupVersion.String(), "kind": "Application",
			"metadata": map[string]any{"name": "app"}, "spec": spec}}
	}
	send := func(spec map[string]any) ([]string, error) {
		_, err := apps.Create(t.Context(), app(spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		var out []string
		for _, text := range h.take() {
			_, text, _ = strings.Cut(text, "': ")
			out = append(out, strings.Split(text, "; ")...)
		}
		return out, err
	}
	// The API server takes up policies some time after it has stored them.
	eventually(t, "the policy holds", func() error {
		got, err := send(cases[0].Spec)
		if err == nil && len(got) == 0 {
			err = errors.New("there are no warnings")
		}
		return err
	})
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			got, err := send(c.Spec)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got) // properties have no order
			slices.Sort(c.Says)
			if !slices.Equal(got, c.Says) {
				t.Errorf("the API server warns of\n%q, not of\n%q", got, c.Says)
			}
		})
	}
}
