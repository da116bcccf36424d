package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue/parser"
)

// TestNamesThatPackagesDoNotHaveAreRefused checks that a definition whose operation does not exist
// does not compile: CUE leaves such a name without a value, and the step would do nothing.
func TestNamesThatPackagesDoNotHaveAreRefused(t *testing.T) {
	for source, want := range map[string]string{
		"import \"vela/op\"\nx: op.#CreateConfig & {name: \"a\"}":                         "line 2: vela/op has no #CreateConfig",
		"import \"vela/op\"\nx: op.#Aply & {value: {}}":                                   "line 2: vela/op has no #Aply",
		"import k \"vela/kube\"\nif parameter.a {x: k.#Applied & {}}\nparameter: a: bool": "line 2: vela/kube has no #Applied",
		"import \"vela/none\"\nx: none.#Apply":                                            "line 1: package vela/none is not supported: there is no such package",
		"import \"vela/helm\"\nx: helm.#Render & {}":                                      "package vela/helm is for the templates of components",
		"import \"vela/terraform\"\nx: terraform.#X & {}":                                 "line 1: package vela/terraform is not supported: components are made of",
		"import \"vela/config\"\nx: config.#MakeConfig & {}":                              "line 2: vela/config has no #MakeConfig",
		"import \"vela/op\"\nx: op.#Apply & {value: {}}":                                  "",
		"import k \"vela/kube\"\nx: k.#Apply & {$params: value: {}}":                      "",
	} {
		_, err := Compile(&Definition{Kind: WorkflowStep, Name: "s", Template: source}, InProcess())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n%v; want %q", source, err, want)
		}
	}
}

// TestVetKnowsOperations checks that Vet refuses exactly the operations that steps refuse.
func TestVetKnowsOperations(t *testing.T) {
	step := func(do string) *Definition {
		return &Definition{Kind: WorkflowStep, Name: "s", Template: `x: {#do: "` + do + `", #provider: "op"}`}
	}
	for _, do := range append(append([]string{"fly", "create-config"}, inside...), Outside...) {
		tmpl, err := Compile(step(do), InProcess())
		if err != nil {
			t.Fatal(err)
		}
		_, atRun := tmpl.Step(&StepRequest{})
		refused := atRun != nil && strings.Contains(atRun.Error(), "the operation "+do+" is not supported")
		if vetted := Vet(step(do)); refused != (vetted != nil) {
			t.Errorf("%s: vet says %v, the step %v", do, vetted, atRun)
		}
	}
	for _, entry := range mustReadDir(t) {
		source, err := packages.ReadFile("packages/" + entry)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.ParseFile(entry, source); err != nil {
			t.Error(err)
		}
		if entry == "helm.cue" {
			continue // components call it, not steps
		}
		if err := Vet(&Definition{Name: entry, Template: string(source)}); err != nil {
			t.Errorf("an operation of %s: %v", entry, err)
		}
	}
}

func mustReadDir(t *testing.T) []string {
	t.Helper()
	entries, err := packages.ReadDir("packages")
	if err != nil || len(entries) == 0 {
		t.Fatalf("no packages: %v", err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestAnotherSecretIsNoConfig checks that delete-config deletes no Secret that is no config.
func TestAnotherSecretIsNoConfig(t *testing.T) {
	tmpl, err := Compile(&Definition{Kind: WorkflowStep, Name: "s", Template: "import \"vela/config\"\nx: config.#DeleteConfig & {$params: {name: \"a\", namespace: \"n\"}}"}, InProcess())
	if err != nil {
		t.Fatal(err)
	}
	for _, labels := range []map[string]any{nil, {"x": "y"}, {"config.oam.dev/catalog": "other"}} {
		s, err := tmpl.Step(&StepRequest{Answers: map[string]Answer{"x.read": {Returns: map[string]any{"value": map[string]any{"metadata": map[string]any{"labels": labels}}}}}})
		if err == nil {
			t.Errorf("labels %v: %+v", labels, s)
		}
	}
}

// TestTemplatesRenderCharts renders a component whose template renders charts and uses their objects.
func TestTemplatesRenderCharts(t *testing.T) {
	compile := func(template string) *Template {
		tmpl, err := Compile(&Definition{Kind: Component, Name: "release", Template: "import \"vela/helm\"\n" + template}, InProcess())
		if err != nil {
			t.Fatal(err)
		}
		return tmpl
	}
	two := compile(`
_made: helm.#Render & {$params: {chart: {source: parameter.chart}, release: name: context.name}}
nested: more: helm.#Render & {$params: {chart: source: "more", values: first: _made.$returns.resources[0].metadata.name}}
output: _made.$returns.resources[0]
outputs: {for r in nested.more.$returns.resources {"\(r.kind)": r}}
parameter: chart: string
`)
	var asked []string
	req := &Request{
		Context: Context{Name: "shop"}, Component: Use{Template: two, Properties: []byte(`{"chart": "web"}`)},
		Fetch: func(r *HTTPRequest) (map[string]any, error) {
			asked = append(asked, r.Chart)
			return map[string]any{"resources": []any{map[string]any{"kind": "ConfigMap", "metadata": map[string]any{"name": fmt.Sprintf("c%d", len(asked))}}}}, nil
		},
	}
	made, err := Render(req)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"chart":{"source":"web"},"release":{"name":"shop"}}`, `{"chart":{"source":"more"},"values":{"first":"c1"}}`}
	if !slices.Equal(asked, want) {
		t.Errorf("it asks for %q, not %q", asked, want)
	}
	if len(made.Objects()) != 2 || fmt.Sprint(made.Objects()[1].Object) != "map[kind:ConfigMap metadata:map[name:c2]]" {
		t.Errorf("it makes %+v", made.Objects())
	}
	req.Fetch = func(*HTTPRequest) (map[string]any, error) { return nil, errors.New("no such chart") }
	if _, err := Render(req); err == nil || !strings.Contains(err.Error(), "vela/helm: no such chart") {
		t.Errorf("the error is %v", err)
	}
}
