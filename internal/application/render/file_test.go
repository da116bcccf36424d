package render_test

import (
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestStatusSectionsOfFiles: authors write the sections of the status as text, or as what the text would say.
func TestStatusSectionsOfFiles(t *testing.T) {
	for name, status := range map[string]string{
		"as text": `status: {
			details: "ready: strings.HasPrefix(context.output.status.phase, \"R\")"
			customStatus: "message: \"phase \" + context.output.status.phase"
			healthPolicy: "isHealth: context.status.details.ready"
		}`,
		"as structs": `status: {
			details: {
				// the short name is for this section alone
				$phase: context.output.status.phase
				ready: strings.HasPrefix($phase, "R")
			}
			customStatus: message: "phase " + context.output.status.phase
			healthPolicy: {isHealth: context.status.details.ready}
		}`,
	} {
		t.Run(name, func(t *testing.T) {
			imports := `import "strings"` + "\n"
			if name == "as text" {
				status = strings.Replace(status, `details: "`, `details: "import \"strings\"\n`, 1)
				imports = ""
			}
			source := "package main\n\n" + imports + `thing: {type: "component", attributes: {workload: type: "autodetects.core.oam.dev", ` + status + "}}\n" +
				`template: {output: {apiVersion: "v1", kind: "Thing"}}`
			object, err := render.ParseFile("thing.cue", []byte(source), nil)
			if err != nil {
				t.Fatal(err)
			}
			def, err := definitionOf(object)
			if err != nil {
				t.Fatal(err)
			}
			tmpl, err := render.Compile(def)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.State(&render.Live{Output: []byte(`{"status": {"phase": "Running"}}`)})
			if err != nil || !got.Healthy || got.Message != "phase Running" || got.Details["ready"] != "true" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
