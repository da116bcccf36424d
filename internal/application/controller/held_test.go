package controller

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// TestATrackerIsExpandedToWhatItSays packs a record as the cluster has it, and as it is held.
func TestATrackerIsExpandedToWhatItSays(t *testing.T) {
	object, err := json.Marshal(map[string]any{"data": map[string]any{"x": "<&> \u2028 \"\\\n"}})
	if err != nil {
		t.Fatal(err)
	}
	want := packed{Applied: map[string]json.RawMessage{"v1/ConfigMap/ns/<a>": object}}
	compression, err := pack(want)
	if err != nil {
		t.Fatal(err)
	}
	rt := oam.ResourceTracker{Spec: oam.ResourceTrackerSpec{Compression: compression, ManagedResources: []oam.ManagedResource{{Component: "web"}}}}
	text, err := json.Marshal(rt)
	if err != nil {
		t.Fatal(err)
	}
	text, _ = expand(text)
	var got oam.ResourceTracker
	if err := kjson.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	r, err := newRecord(&got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r.packed); diff != "" || got.Spec.Compression.Type != oam.Uncompressed || len(r.resources) != 1 {
		t.Errorf("%d resources, packed as %q:\n%s", len(r.resources), got.Spec.Compression.Type, diff)
	}
}

func TestAGlanceAtAnApplication(t *testing.T) {
	text, err := json.Marshal(oam.Application{Status: oam.ApplicationStatus{Phase: oam.PhaseRunning, Workflow: &oam.WorkflowStatus{Suspend: true}}})
	if err != nil {
		t.Fatal(err)
	}
	keep, note := glanceAt(text)
	if want := (glance{phase: oam.PhaseRunning, workflow: true, suspend: true}); note != want || string(keep) != string(text) {
		t.Errorf("%+v, want %+v", note, want)
	}
	if _, note := glanceAt([]byte(`{"spec":{}}`)); note != (glance{}) {
		t.Errorf("%+v of what has no status", note)
	}
}
