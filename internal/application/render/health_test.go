package render_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

func TestStatusSections(t *testing.T) {
	ready := `[{"type": "Ready", "status": "True"}]`
	for name, c := range map[string]struct {
		health oam.DefinitionHealth
		output string
		want   render.State
	}{
		"the health uses the details, and the message both": {
			oam.DefinitionHealth{
				Details:      "$found: [for c in *context.output.status.conditions | [] if c.type == \"Ready\" {c}]\nready: len($found) > 0",
				HealthPolicy: "isHealth: context.status.details.ready",
				CustomStatus: "message: \"healthy: \\(context.status.healthy), \\(len(context.status.details.$found)) conditions\"",
			},
			`{"status": {"conditions": ` + ready + `}}`,
			render.State{Healthy: true, Message: "healthy: true, 1 conditions", Details: map[string]string{"ready": "true"}},
		},
		"before there is a status": {
			oam.DefinitionHealth{
				Details:      "ready: len([for c in *context.output.status.conditions | [] if c.type == \"Ready\" {c}]) > 0",
				HealthPolicy: "isHealth: *context.status.details.ready | false",
				CustomStatus: "message: string | *\"ready\"\nif !context.status.healthy {message: \"not yet\"}",
			},
			`{}`,
			render.State{Message: "not yet", Details: map[string]string{"ready": "false"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := render.Compile(&render.Definition{Kind: render.Component, Name: "d", Template: "output: {}", Health: c.health}, render.InProcess())
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.State(&render.Live{Context: render.Context{Name: "web"}, Output: []byte(c.output)})
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}
