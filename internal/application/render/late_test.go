package render_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// TestWhichTraitsAreLate checks which traits are rendered from live objects: traits of
// the stage PostDispatch that read fields which the rendered objects lack.
func TestWhichTraitsAreLate(t *testing.T) {
	component := compiled(t, render.Component, `output: {apiVersion: "v1", kind: "Service", spec: {type: "LoadBalancer", ports: [{port: 80}]}}
outputs: config: {apiVersion: "v1", kind: "ConfigMap", data: k: "v"}`, "")
	for reads, want := range map[string]struct {
		late bool
		data string
	}{
		`"fixed"`:                                            {false, "fixed"},
		`context.output.spec.type`:                           {false, "LoadBalancer"},
		`context.outputs.config.data.k`:                      {false, "v"},
		`context.output.metadata.uid`:                        {true, "u"},
		`context.output.status.address`:                      {true, "a"},
		`*context.output.status.x | "no"`:                    {true, "no"},
		`context.outputs.config.status.x`:                    {true, "x"},
		`*context.outputs.other.x | "no"`:                    {true, "no"},
		`context["output"]["status"].address`:                {true, "a"},
		`[for k, v in context.output if k == "kind" {v}][0]`: {true, "Service"},
	} {
		for _, stage := range []oam.StageType{oam.PostDispatch, ""} {
			trait := compiled(t, render.Trait, `outputs: made: {apiVersion: "v1", kind: "ConfigMap", data: value: `+reads+`}`, stage)
			late := want.late && stage == oam.PostDispatch
			req := &render.Request{Component: render.Use{Template: component}, Traits: []render.Use{{Template: trait}}}
			got, err := render.Render(req)
			if late && (err != nil || len(got.Late) != 1 || len(got.Auxiliaries) != 1) || !late && err == nil && len(got.Late) > 0 {
				t.Errorf("%s, stage %q: late %+v, error %v", reads, stage, got, err)
				continue
			}
			if !late {
				continue
			}
			req.Live, err = render.LivePart(req.Traits, &render.LiveObjects{
				Output:  []byte(`{"kind":"Service","metadata":{"uid":"u"},"spec":{"type":"changed"},"status":{"address":"a"}}`),
				Outputs: map[string][]byte{"config": []byte(`{"status":{"x":"x"}}`)},
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, err = render.Render(req); err != nil || len(got.Late) > 0 || len(got.Auxiliaries) != 2 {
				t.Errorf("%s with live objects: %+v, error %v", reads, got, err)
				continue
			}
			if d := cmp.Diff(map[string]any{"value": want.data}, got.Auxiliaries[1].Object["data"]); d != "" {
				t.Errorf("%s with live objects (-want +got):\n%s", reads, d)
			}
		}
	}
}

// TestLivePartHasWhatIsRead checks that only a change of what traits read of live objects makes them be
// rendered again.
func TestLivePartHasWhatIsRead(t *testing.T) {
	use := []render.Use{{Template: compiled(t, render.Trait, `outputs: a: {apiVersion: "v1", kind: "ConfigMap", data: {ip: context.output.status.ip, name: context.name}}`, oam.PostDispatch)}}
	part := func(output string) string {
		data, err := render.LivePart(use, &render.LiveObjects{Output: []byte(output)})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	one := part(`{"metadata":{"resourceVersion":"1"},"status":{"ip":"a","ready":1}}`)
	if same := part(`{"metadata":{"resourceVersion":"2"},"status":{"ip":"a","ready":2}}`); same != one {
		t.Errorf("%s and %s", one, same)
	}
	if other := part(`{"status":{"ip":"b"}}`); other == one {
		t.Errorf("%s twice", one)
	}
}

func compiled(t *testing.T, kind render.Kind, template string, stage oam.StageType) *render.Template {
	t.Helper()
	out, err := render.Compile(&render.Definition{Kind: kind, Name: "d", Template: template, Stage: stage}, render.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	return out
}
