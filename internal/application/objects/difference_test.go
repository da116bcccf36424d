package objects

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// shown returns an object as the watch shows it. text is the JSON of its members other than
// apiVersion, kind and metadata.
func shown(t *testing.T, labels, text string) *Object {
	t.Helper()
	r := &kubeclient.Raw{JSON: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"ns","labels":{` + labels + `}},` + text + `}`)}
	r.Name, r.Namespace, r.ResourceVersion = "x", "ns", "1"
	o, err := NewObject(r)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const (
	ours  = `"oam.dev/render-hash":"h","app.oam.dev/appRevision":"a-v1"`
	older = `"oam.dev/render-hash":"before","app.oam.dev/appRevision":"a-v1"`
)

func TestTheDifferenceOfAnObjectAndItsPlan(t *testing.T) {
	for name, c := range map[string]struct {
		wanted, applied string // members of the object besides metadata
		labels, there   string
		update          bool
		keep            []plan.KeptField
		recreateFields  []string
		replace         bool
		patch           string
		recreate        bool
	}{
		"as planned":                              {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"v"}`},
		"the server's defaults are no drift":      {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"v","more":"x"},"immutable":false`},
		"drift is repaired":                       {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, patch: `{"data":{"k":"v"}}`},
		"a repair removes nothing":                {wanted: `"data":{"k":"v"}`, applied: `"data":{"k":"v","old":"x"}`, labels: ours, there: `"data":{"k":"w","old":"x"}`, patch: `{"data":{"k":"v"}}`},
		"an update removes what left the plan":    {wanted: `"data":{"k":"v"}`, applied: `"data":{"k":"v","old":"x"}`, labels: ours, there: `"data":{"k":"v","old":"x"}`, update: true, patch: `{"data":{"old":null}}`},
		"an update keeps what others added":       {wanted: `"data":{"k":"v"}`, applied: `"data":{"k":"u"}`, labels: ours, there: `"data":{"k":"u","theirs":"x"}`, update: true, patch: `{"data":{"k":"v"}}`},
		"a replacement removes what others added": {wanted: `"data":{"k":"v"}`, applied: `"data":{"k":"u"}`, labels: ours + `,"theirs":"x"`, there: `"data":{"k":"u","theirs":"x"},"immutable":false,"status":{"a":1}`, update: true, replace: true, patch: `{"data":{"k":"v","theirs":null},"immutable":null,"metadata":{"labels":{"theirs":null}}}`},
		"a repair replaces nothing":               {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w","theirs":"x"}`, replace: true, patch: `{"data":{"k":"v"}}`},
		"an update changes the labels":            {wanted: `"data":{"k":"v"}`, labels: older, there: `"data":{"k":"v"}`, update: true, patch: `{"metadata":{"labels":{"oam.dev/render-hash":"h"}}}`},
		"a kept field is not repaired":            {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, keep: []plan.KeptField{{Path: "data.k"}}},
		"a kept object is not repaired":           {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, keep: []plan.KeptField{{Path: "*"}}},
		"a field kept on update is repaired":      {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, keep: []plan.KeptField{{Path: "data.k", Affect: plan.OnUpdate}}, patch: `{"data":{"k":"v"}}`},
		"a field kept in a state is updated":      {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, update: true, keep: []plan.KeptField{{Path: "data.k", Affect: plan.OnStateKeep}}, patch: `{"data":{"k":"v"}}`},
		"a field that requires a new object":      {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, recreateFields: []string{"data.k"}, patch: `{"data":{"k":"v"}}`, recreate: true},
		"another field needs no new object":       {wanted: `"data":{"k":"v"}`, labels: ours, there: `"data":{"k":"w"}`, recreateFields: []string{"data.l"}, patch: `{"data":{"k":"v"}}`},
		"a zero value may be missing":             {wanted: `"immutable":false`, labels: ours, there: `"data":{"k":"w"}`},
	} {
		t.Run(name, func(t *testing.T) {
			whole := func(members string) json.RawMessage {
				return json.RawMessage(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"ns","labels":{}},` + members + `}`)
			}
			w := &Wanted{
				Resource: &plan.Resource{
					Ref:  plan.Ref{GVK: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Namespace: "ns", Name: "x"},
					JSON: whole(c.wanted), Hash: "h", Keep: c.keep, RecreateFields: c.recreateFields, Replace: c.replace,
				},
				Owner: types.NamespacedName{Namespace: "ns", Name: "a"}, Revision: "a-v1",
			}
			if c.applied != "" {
				w.Applied = whole(c.applied)
			}
			patch, recreate, err := w.Difference(shown(t, c.labels, c.there), c.update)
			if err != nil {
				t.Fatal(err)
			}
			if string(patch) != c.patch || recreate != c.recreate {
				t.Errorf("patch %s, recreate %t; want %s, %t", patch, recreate, c.patch, c.recreate)
			}
		})
	}
}

func TestWhenAnObjectHasDoneItsWork(t *testing.T) {
	for name, c := range map[string]struct {
		kind, status string
		done         bool
		failure      string
	}{
		"a job that is complete":    {"Job", `{"conditions":[{"type":"Complete","status":"True"}]}`, true, ""},
		"a job that runs":           {"Job", `{"conditions":[{"type":"Complete","status":"False"}]}`, false, ""},
		"a job that failed":         {"Job", `{"conditions":[{"type":"Failed","status":"True","message":"too often"}]}`, false, "too often"},
		"a pod that has succeeded":  {"Pod", `{"phase":"Succeeded"}`, true, ""},
		"a pod that runs":           {"Pod", `{"phase":"Running"}`, false, ""},
		"a pod that failed":         {"Pod", `{"phase":"Failed"}`, false, "failed"},
		"a kind that is served":     {"CustomResourceDefinition", `{"conditions":[{"type":"Established","status":"True"}]}`, true, ""},
		"a kind that is not served": {"CustomResourceDefinition", `{}`, false, ""},
		"any other object":          {"ConfigMap", `{}`, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			done, err := Completed(plan.Ref{GVK: schema.GroupVersionKind{Version: "v1", Kind: c.kind}, Namespace: "ns", Name: "x"}, shown(t, "", `"status":`+c.status))
			if done != c.done || (err != nil) != (c.failure != "") {
				t.Errorf("%t, %v", done, err)
			}
		})
	}
	if done, err := Completed(plan.Ref{}, nil); done || err != nil {
		t.Errorf("what does not exist: %t, %v", done, err)
	}
}
