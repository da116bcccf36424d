package render_test

import (
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestStatusSectionsOfFiles checks that status sections may be written as strings or as structs.
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
			tmpl, err := render.Compile(def, render.InProcess())
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

// TestFragmentsHaveAttributes checks that definitions share the attributes of a fragment.
func TestFragmentsHaveAttributes(t *testing.T) {
	const short = "thing: type: \"trait\"\ntemplate: patch: spec: a: 1\n"
	if _, err := render.ParseFile("thing.cue", []byte(short), nil); err == nil || !strings.Contains(err.Error(), "in braces") {
		t.Errorf("%v; want an error about braces", err)
	}
	source := "// +include=ready\n" + `thing: {type: "trait", attributes: {podDisruptive: true, status: customStatus: "message: \"own\""}}` + "\n" +
		"template: {\n\tpatch: spec: _spec\n}\n"
	_, err := render.ParseFile("thing.cue", []byte(source), nil)
	if err == nil {
		t.Error("a fragment cannot be included without fragments")
	}
	fragment := func(text string) func(string) ([]byte, error) {
		return func(string) ([]byte, error) { return []byte(text), nil }
	}
	object, err := render.ParseFile("thing.cue", []byte(source), fragment(
		"// What is ready.\n\nattributes: {\n\tappliesToWorkloads: [\"*\"]\n\tstatus: healthPolicy: isHealth: context.output.ready\n}\n_spec: a: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	def, err := definitionOf(object)
	if err != nil {
		t.Fatal(err)
	}
	if def.Template != "patch: spec: _spec\n// What is ready.\n\n_spec: a: 1\n" {
		t.Errorf("template %q", def.Template)
	}
	if def.Health.CustomStatus != `message: "own"` || strings.TrimSpace(def.Health.HealthPolicy) != "isHealth: context.output.ready" || len(def.AppliesTo) != 1 {
		t.Errorf("%+v", def)
	}
	if _, err := render.ParseFile("thing.cue", []byte(source), fragment("attributes: podDisruptive: false")); err == nil {
		t.Error("attributes that contradict each other are an error")
	}
	if _, err := render.ParseFile("thing.cue", []byte(source), fragment("a: {")); err == nil || !strings.Contains(err.Error(), "fragment ready") {
		t.Errorf("%v; want the fragment's name in it", err)
	}
}
