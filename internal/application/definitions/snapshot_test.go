package definitions

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// TestRevisionsHaveTheirDefinitions checks which definitions the snapshot of a spec contains. A
// definition in the namespace comes before one of the system, a pinned type has the pinned revision,
// and a WorkloadDefinition is used if there is no ComponentDefinition.
func TestRevisionsHaveTheirDefinitions(t *testing.T) {
	d := New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	template := func(text string) *oam.Schematic { return &oam.Schematic{CUE: &oam.CUE{Template: text}} }
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1", UID: "u", Labels: map[string]string{"componentdefinition.oam.dev/name": "pinned"}}
	}
	web := &oam.ComponentDefinition{ObjectMeta: meta("vela-system", "web"), Spec: oam.ComponentDefinitionSpec{Schematic: template("web")}}
	for _, err := range []error{
		d.components.Store().Add(web),
		d.components.Store().Add(&oam.ComponentDefinition{ObjectMeta: meta("vela-system", "own"), Spec: oam.ComponentDefinitionSpec{Schematic: template("of the system")}}),
		d.components.Store().Add(&oam.ComponentDefinition{ObjectMeta: meta("prod", "own"), Spec: oam.ComponentDefinitionSpec{Schematic: template("own")}}),
		d.components.Store().Add(&oam.ComponentDefinition{ObjectMeta: meta("prod", "pinned"), Spec: oam.ComponentDefinitionSpec{Schematic: template("new")}}),
		d.stored.Store().Add(&oam.DefinitionRevision{ObjectMeta: meta("prod", "pinned-v1"), Spec: oam.DefinitionRevisionSpec{
			Revision: 1, DefinitionType: "Component", ComponentDefinition: &runtime.RawExtension{Raw: []byte(`{"spec":{"schematic":{"cue":{"template":"old"}}}}`)},
		}}),
		d.workloads.Store().Add(&oam.WorkloadDefinition{ObjectMeta: meta("prod", "legacy"), Spec: oam.WorkloadDefinitionSpec{Schematic: template("legacy")}}),
		d.workloads.Store().Add(&oam.WorkloadDefinition{ObjectMeta: meta("prod", "web"), Spec: oam.WorkloadDefinitionSpec{Schematic: template("not this")}}),
		d.traits.Store().Add(&oam.TraitDefinition{ObjectMeta: meta("vela-system", "scaler"), Spec: oam.TraitDefinitionSpec{Schematic: template("scaler")}}),
		d.policies.Store().Add(&oam.PolicyDefinition{ObjectMeta: meta("prod", "guard"), Spec: oam.PolicyDefinitionSpec{Schematic: template("guard")}}),
		d.steps.Store().Add(&oam.WorkflowStepDefinition{ObjectMeta: meta("prod", "ask"), Spec: oam.WorkflowStepDefinitionSpec{Schematic: template("ask")}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	spec := &oam.ApplicationSpec{}
	if err := yaml.Unmarshal([]byte(`
components:
- {name: a, type: web, traits: [{type: scaler}, {type: none}]}
- {name: b, type: own}
- {name: c, type: pinned@v1}
- {name: d, type: legacy}
policies: [{type: guard}, {type: topology}]
workflow: {steps: [{type: step-group, subSteps: [{type: ask}]}]}
`), spec); err != nil {
		t.Fatal(err)
	}
	unpack := func(c oam.Compression) map[string]map[string]string {
		t.Helper()
		raw, err := base64.StdEncoding.DecodeString(c.Data)
		if err != nil || c.Type != oam.Gzip {
			t.Fatalf("packed as %q: %v", c.Type, err)
		}
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(z)
		if err != nil || strings.Contains(string(text), `"uid"`) || strings.Contains(string(text), `"resourceVersion"`) {
			t.Errorf("%s, %v", text, err)
		}
		var kinds map[string]map[string]struct {
			Spec struct{ Schematic oam.Schematic }
		}
		if err := json.Unmarshal(text, &kinds); err != nil {
			t.Fatal(err)
		}
		out := map[string]map[string]string{}
		for kind, all := range kinds {
			out[kind] = map[string]string{}
			for name, of := range all {
				out[kind][name] = of.Spec.Schematic.CUE.Template
			}
		}
		return out
	}
	want := map[string]map[string]string{
		"componentDefinitions":    {"web": "web", "own": "own", "pinned": "old"},
		"workloadDefinitions":     {"legacy": "legacy"},
		"traitDefinitions":        {"scaler": "scaler"},
		"policyDefinitions":       {"guard": "guard"},
		"workflowStepDefinitions": {"ask": "ask"},
	}
	if diff := cmp.Diff(want, unpack(d.Snapshot("prod", spec))); diff != "" {
		t.Error(diff)
	}
	changed := web.DeepCopy()
	changed.ResourceVersion, changed.Spec.Schematic = "2", template("web of today")
	if err := d.components.Store().Update(changed); err != nil {
		t.Fatal(err)
	}
	want["componentDefinitions"]["web"] = "web of today"
	if diff := cmp.Diff(want, unpack(d.Snapshot("prod", spec))); diff != "" {
		t.Errorf("after a change: %s", diff)
	}
	if c := d.Snapshot("prod", &oam.ApplicationSpec{Components: []oam.Component{{Type: "none"}}}); c != (oam.Compression{}) {
		t.Errorf("without definitions: %+v", c)
	}
	huge := changed.DeepCopy()
	var text strings.Builder
	for i := range 400_000 { // hardly compressible
		text.WriteString(base64.StdEncoding.EncodeToString([]byte{byte(i * i >> 3), byte(i * 31 >> 2), byte(i ^ i>>5)}))
	}
	huge.ResourceVersion, huge.Spec.Schematic = "3", template(text.String())
	if err := d.components.Store().Update(huge); err != nil {
		t.Fatal(err)
	}
	if c := d.Snapshot("prod", spec); len(c.Data) > snapshotMax {
		t.Errorf("a snapshot of %d bytes", len(c.Data))
	}
}
