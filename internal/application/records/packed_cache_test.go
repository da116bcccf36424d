package records

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// TestATrackerIsExpandedToWhatItSays compares a record as the cluster stores it with the record
// after Expand.
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
	text, _ = Expand(text)
	var got oam.ResourceTracker
	if err := kjson.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	var r Tracker
	if err := r.replace(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r.packed); diff != "" || got.Spec.Compression.Type != expandedType || len(r.Resources) != 1 {
		t.Errorf("%d resources, packed as %q:\n%s", len(r.Resources), got.Spec.Compression.Type, diff)
	}
}

func TestAGlanceAtAnApplication(t *testing.T) {
	text, err := json.Marshal(oam.Application{Status: oam.ApplicationStatus{Phase: oam.PhaseRunning, Workflow: &oam.WorkflowStatus{Suspend: true}}})
	if err != nil {
		t.Fatal(err)
	}
	keep, note := Summarize(text)
	if want := (Summary{Phase: oam.PhaseRunning, Workflow: true, Suspend: true}); note != want || string(keep) != string(text) {
		t.Errorf("%+v, want %+v", note, want)
	}
	if _, note := Summarize([]byte(`{"spec":{}}`)); note != (Summary{}) {
		t.Errorf("%+v of what has no status", note)
	}
}

// TestAnApplicationIsReadAsFarAsItCanBe checks what ReadApplication returns when a part of an
// Application cannot be decoded.
func TestAnApplicationIsReadAsFarAsItCanBe(t *testing.T) {
	raw := &kubeclient.Raw{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	for _, c := range []struct {
		name, text        string
		components, phase string
		failed            string
	}{
		{"all of it", `{"spec":{"components":[{"name":"web"}]},"status":{"status":"running"}}`, "web", "running", ""},
		{"a status that cannot be read is none", `{"spec":{"components":[{"name":"web"}]},"status":{"status":"running","observedGeneration":"x"}}`, "web", "", ""},
		{"without a spec it is said why", `{"spec":{"components":[{"name":1}]},"status":{"status":"running"}}`, "", "running", "spec.components[0].name: 1 is no string"},
		{"nothing", `[`, "", "", "unexpected end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := ReadApplication([]byte(c.text), raw)
			if (err != nil) != (c.failed != "") || err != nil && !strings.Contains(err.Error(), c.failed) {
				t.Errorf("error %v, not %q", err, c.failed)
			}
			names := ""
			for _, x := range o.Spec.Components {
				names += x.Name
			}
			if names != c.components || string(o.Status.Phase) != c.phase || o.Name != "shop" {
				t.Errorf("%q: components %q in phase %q", o.Name, names, o.Status.Phase)
			}
		})
	}
}

// TestRecordsAreComparedAsTheTrackerHasThem checks that JSON that differs only in form is not
// written again: the tracker's JSON is compact, and some of its characters are escaped.
func TestRecordsAreComparedAsTheTrackerHasThem(t *testing.T) {
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"the same text":    {`{"url":"http://x/?a=1&b=<2>"}`, `{"url":"http://x/?a=1&b=<2>"}`, true},
		"escaped":          {`{"url":"http://x/?a=1&b=<2>"}`, `{"url":"http://x/?a=1\u0026b=\u003c2\u003e"}`, true},
		"with blanks":      {`{ "a": [1, 2] }`, `{"a":[1,2]}`, true},
		"another value":    {`{"a":1}`, `{"a":2}`, false},
		"nothing before":   {``, `{}`, false},
		"what is no JSON":  {`{`, `{}`, false},
		"neither is there": {``, ``, true},
	} {
		if got := SameJSON(json.RawMessage(c.a), json.RawMessage(c.b)); got != c.same {
			t.Errorf("%s: %t", name, got)
		}
	}
}
