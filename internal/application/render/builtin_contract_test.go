package render_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/render"
)

// compareWith compares a text with a golden file, or writes the file under go test -update.
func compareWith(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestBuiltinParameters compares the parameters of all built-in definitions with
// testdata/parameters.txt: users' Applications depend on their names, types and defaults.
func TestBuiltinParameters(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintln(&b, name)
		parameters, err := all[name].Parameters()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		slices.SortStableFunc(parameters, func(x, y render.Parameter) int { return strings.Compare(x.Name, y.Name) })
		for _, p := range parameters {
			fmt.Fprintf(&b, "  %s %s", p.Name, p.Type)
			if p.Required {
				b.WriteString(" required")
			}
			if p.Default != "" {
				b.WriteString(" default " + p.Default)
			}
			b.WriteByte('\n')
		}
	}
	compareWith(t, "testdata/parameters.txt", b.String())
}

// TestBuiltinsKnowTheirParameters checks that a misspelt property of a built-in definition causes a
// warning. Definitions that use their properties as a whole, or that accept two forms of
// properties, are excepted: they reject such properties themselves.
func TestBuiltinsKnowTheirParameters(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	cannot := map[string]bool{"ComponentDefinition raw": true, "ComponentDefinition helmchart": true, "TraitDefinition pvc": true}
	for _, trait := range []string{
		"annotations", "command", "container-image", "container-ports", "env", "json-merge-patch", "json-patch", "labels", "securitycontext", "startup-probe",
	} {
		cannot["TraitDefinition "+trait] = true
	}
	for name, template := range all {
		if noticed := len(template.Unused([]byte(`{"misspelt": 1}`))) == 1; noticed == cannot[name] {
			t.Errorf("%s: a misspelt property is noticed: %t", name, noticed)
		}
	}
}

// TestBuiltinParametersHaveCases checks that the test cases use every parameter of components and
// traits.
func TestBuiltinParametersHaveCases(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]map[string]bool{}
	add := func(definition string, properties []byte) {
		if used[definition] == nil {
			used[definition] = map[string]bool{}
		}
		if len(properties) == 0 {
			return
		}
		var value any
		if err := json.Unmarshal(properties, &value); err != nil {
			t.Fatal(err)
		}
		paths(value, "", used[definition])
	}
	for _, c := range cases(t) {
		add("ComponentDefinition "+c.component.Type, raw(c.component.Properties))
		for _, trait := range c.component.Traits {
			add("TraitDefinition "+trait.Type, raw(trait.Properties))
		}
	}
	for name, template := range all {
		if template.Definition.Kind == render.WorkflowStep {
			continue
		}
		parameters, err := template.Parameters()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parameters {
			if !used[name][p.Name] {
				t.Errorf("no case of %s has %s", name, p.Name)
			}
		}
	}
}

// paths adds the paths of all fields in a value, in the form of render.Parameter.
func paths(value any, at string, to map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			to[at+k] = true
			paths(v, at+k+".", to)
		}
	case []any:
		for _, v := range value {
			paths(v, strings.TrimSuffix(at, ".")+"[].", to)
		}
	}
}

type builtinCase struct {
	source    string
	component oam.Component
}

// cases returns the components in testdata/builtins and testdata/parameters by file name.
func cases(t testing.TB) map[string]builtinCase {
	t.Helper()
	files, err := filepath.Glob("testdata/[bp]*/*.yaml") // builtins and parameters
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]builtinCase{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := builtinCase{}
		c.source, _, _ = strings.Cut(string(data), "\n---\n")
		if err := yaml.UnmarshalStrict([]byte(c.source), &c.component); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".yaml")] = c
	}
	return out
}

// TestBuiltinStates evaluates the status sections of built-in definitions on the live objects in
// testdata/states. Each file is "cases\n---\nstates"; go test -update writes the states.
func TestBuiltinStates(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/states/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source, _, _ := strings.Cut(string(data), "\n---\n")
		var list struct {
			Definitions []string
			Cases       []struct {
				Name       string
				Properties json.RawMessage
				Output     json.RawMessage
				Outputs    map[string]json.RawMessage
			}
		}
		if err := yaml.UnmarshalStrict([]byte(source), &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		got := strings.TrimRight(source, "\n") + "\n---\n"
		for _, definition := range list.Definitions {
			template := all[definition]
			if template == nil {
				t.Fatalf("%s: there is no %s", file, definition)
			}
			tried[definition] = true
			for _, c := range list.Cases {
				live := &render.Live{
					Context:    render.Context{Name: "web", Namespace: "prod", AppName: "shop"},
					Properties: c.Properties, Output: c.Output, Outputs: map[string][]byte{},
				}
				for name, o := range c.Outputs {
					live.Outputs[name] = o
				}
				s, err := template.State(live)
				problem := ""
				if err != nil {
					problem = ", it cannot be evaluated"
				}
				got += fmt.Sprintf("%s, %s: healthy %t, message %q%s\n", definition, c.Name, s.Healthy, s.Message, problem)
			}
		}
		compareWith(t, file, got)
	}
	for name, template := range all {
		if template.HasState() && !tried[name] {
			t.Errorf("no case evaluates the state of %s", name)
		}
	}
}

// BenchmarkCompileBuiltins compiles all built-in definitions once.
func BenchmarkCompileBuiltins(b *testing.B) {
	var defs []*render.Definition
	for _, d := range config.Definitions() {
		object, err := render.ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			b.Fatal(err)
		}
		def, err := definitionOf(object)
		if err != nil {
			b.Fatal(err)
		}
		defs = append(defs, def)
	}
	for b.Loop() {
		run := render.InProcess() // a new engine with an empty cache
		for _, def := range defs {
			if _, err := render.Compile(def, run); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkRenderBuiltins renders every component of the cases once.
func BenchmarkRenderBuiltins(b *testing.B) {
	all := cases(b)
	names := slices.Sorted(maps.Keys(all))
	for b.Loop() {
		for _, name := range names {
			// Some are rejected, which takes time, too.
			_, _ = renderComponent(b, all[name].source, map[string]bool{})
		}
	}
}

// TestBuiltinStepCases plays the steps in testdata/steps.yaml with the answers given there, and
// compares their actions, outcomes and outputs with the rest of the file, which go test -update
// writes.
func TestBuiltinStepCases(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/steps.yaml"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	source, _, _ := strings.Cut(string(data), "\n---\n")
	var list struct {
		Cases []struct {
			Name, Step string
			Properties json.RawMessage
			World      map[string]map[string]any
			Outputs    map[string]string
		}
	}
	if err := yaml.UnmarshalStrict([]byte(source), &list); err != nil {
		t.Fatal(err)
	}
	got := strings.TrimRight(source, "\n") + "\n---\n"
	outcomes := map[render.StepOutcome]string{
		render.StepDone: "done", render.StepWaits: "waits", render.StepFails: "fails", render.StepSuspends: "suspends",
	}
	for _, c := range list.Cases {
		template := all[string(render.WorkflowStep)+" "+c.Step]
		if template == nil {
			t.Fatalf("there is no step %s", c.Step)
		}
		world := map[string]render.Answer{}
		for key, returns := range c.World {
			world[key] = render.Answer{Returns: whole(returns).(map[string]any)}
		}
		var outputs []oam.StepOutput
		for _, name := range slices.Sorted(maps.Keys(c.Outputs)) {
			outputs = append(outputs, oam.StepOutput{Name: name, ValueFrom: c.Outputs[name]})
		}
		s, asked := playTemplate(t, template, string(c.Properties), world, outputs...)
		got += fmt.Sprintf("%s: %s %q\n", c.Name, outcomes[s.Outcome], s.Message)
		for _, a := range asked {
			params, err := json.Marshal(a.Params)
			if err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprintf("  %s %s %s\n", a.Key, a.Do, params)
		}
		for _, name := range slices.Sorted(maps.Keys(c.Outputs)) {
			got += fmt.Sprintf("  output %s: %s\n", name, s.Outputs[name])
		}
	}
	compareWith(t, file, got)
}

// whole converts JSON's numbers to int64, as answers have them.
func whole(v any) any {
	switch v := v.(type) {
	case float64:
		return int64(v)
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	}
	return v
}

// TestBuiltinsAskForTheirParameters removes each required parameter of each case in turn and checks
// that rendering fails. A template that copies only what exists would make an object without the
// parameter.
func TestBuiltinsAskForTheirParameters(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for name, c := range cases(t) {
		if _, err := renderComponent(t, c.source, map[string]bool{}); err != nil {
			continue
		}
		if len(c.component.Traits) > 1 {
			continue // another parameter may replace the removed one
		}
		uses := []*render.Use{{Template: all["ComponentDefinition "+c.component.Type], Properties: raw(c.component.Properties)}}
		for _, trait := range c.component.Traits {
			uses = append(uses, &render.Use{Template: all["TraitDefinition "+trait.Type], Properties: raw(trait.Properties)})
		}
		for i, use := range uses {
			parameters, err := use.Template.Parameters()
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range parameters {
				var properties any
				if err := json.Unmarshal(use.Properties, &properties); len(use.Properties) > 0 && err != nil {
					t.Fatal(err)
				}
				if !p.Required || p.Type == "struct" || !drop(properties, strings.Split(p.Name, ".")) {
					continue
				}
				without, err := json.Marshal(properties)
				if err != nil {
					t.Fatal(err)
				}
				req := &render.Request{Context: render.Context{
					Name: c.component.Name, Namespace: "prod", AppName: "shop", ClusterVersion: render.ClusterVersion{Major: "1", Minor: 36},
				}}
				for j, other := range uses {
					it := *other
					if j == i {
						it.Properties = without
					}
					if j == 0 {
						req.Component = it
					} else {
						req.Traits = append(req.Traits, it)
					}
				}
				tried++
				if _, err := render.Render(req); err == nil {
					t.Errorf("%s: %s is made without %s", name, use.Template.Definition, p.Name)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d parameters were left out", tried)
	}
}

// drop removes the fields at a path in the form of render.Parameter, and reports whether there were
// any.
func drop(value any, path []string) bool {
	name, list := strings.CutSuffix(path[0], "[]")
	object, ok := value.(map[string]any)
	if !ok || object[name] == nil {
		return false
	}
	if len(path) == 1 {
		delete(object, name)
		return true
	}
	if !list {
		return drop(object[name], path[1:])
	}
	dropped := false
	items, _ := object[name].([]any)
	for _, item := range items {
		dropped = drop(item, path[1:]) || dropped
	}
	return dropped
}
