package render_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/render"
)

var update = flag.Bool("update", false, "write what the templates make into the golden files")

// builtins returns the compiled built-in definitions by kind and name.
var builtins = sync.OnceValues(func() (map[string]*render.Template, error) {
	out := map[string]*render.Template{}
	for _, d := range config.Definitions() {
		object, err := render.ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			return nil, err
		}
		def, err := definitionOf(object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
		t, err := render.Compile(def, render.InProcess())
		if err != nil {
			return nil, err
		}
		out[def.String()] = t
	}
	return out, nil
})

func definitionOf(object map[string]any) (*render.Definition, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	switch kind := render.Kind(object["kind"].(string)); kind {
	case render.Component:
		var o oam.ComponentDefinition
		err = strict.Decode(&o)
		return render.OfComponent(&o), err
	case render.Trait:
		var o oam.TraitDefinition
		err = strict.Decode(&o)
		return render.OfTrait(&o), err
	case render.Policy:
		var o oam.PolicyDefinition
		err = strict.Decode(&o)
		return render.OfPolicy(&o), err
	case render.WorkflowStep:
		var o oam.WorkflowStepDefinition
		err = strict.Decode(&o)
		return render.OfWorkflowStep(&o), err
	default:
		return nil, fmt.Errorf("kind %s", kind)
	}
}

func use(t testing.TB, kind render.Kind, name string, properties []byte) render.Use {
	t.Helper()
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	template := all[string(kind)+" "+name]
	if template == nil {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return render.Use{Template: template, Properties: properties}
}

// TestBuiltins renders each component in testdata/builtins and testdata/parameters, and compares
// the objects with those in the rest of the file. Cases in testdata/builtins show a definition, and
// docs/applications-reference.md names them. Cases in testdata/parameters cover the definition's
// other parameters and branches. Each file is "component\n---\nobjects"; go test -update writes the
// objects. A first line "# cluster: 18" sets the cluster's minor version.
func TestBuiltins(t *testing.T) {
	files, err := filepath.Glob("testdata/[bp]*/*.yaml") // builtins and parameters
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source, want, _ := strings.Cut(string(data), "\n---\n")
			got, err := renderComponent(t, source, used)
			if err != nil {
				got = fmt.Sprintf("error: %q\n", lineOfTemplate.ReplaceAllString(err.Error(), ""))
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.TrimRight(source, "\n")+"\n---\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	for name, template := range all {
		if !used[name] && template.Definition.Kind != render.WorkflowStep {
			t.Errorf("no case uses %s", name)
		}
	}
}

// lineOfTemplate matches the line number in a template's error, which is not part of the contract.
var lineOfTemplate = regexp.MustCompile(`line \d+: `)

func renderComponent(t testing.TB, source string, used map[string]bool) (string, error) {
	t.Helper()
	var component oam.Component
	if err := yaml.UnmarshalStrict([]byte(source), &component); err != nil {
		t.Fatal(err)
	}
	minor := int64(36)
	if first, _, _ := strings.Cut(source, "\n"); strings.HasPrefix(first, "# cluster: ") {
		if _, err := fmt.Sscanf(first, "# cluster: %d", &minor); err != nil {
			t.Fatal(err)
		}
	}
	req := &render.Request{
		Context: render.Context{
			Name: component.Name, Namespace: "prod", AppName: "shop", AppRevision: "shop-v1", AppRevisionNum: 1,
			Revision: "0123abcd", Cluster: "local", ComponentType: component.Type,
			ClusterVersion: render.ClusterVersion{Major: "1", Minor: minor, GitVersion: fmt.Sprintf("v1.%d.0", minor)},
		},
		Component: use(t, render.Component, component.Type, raw(component.Properties)),
	}
	used["ComponentDefinition "+component.Type] = true
	for _, trait := range component.Traits {
		req.Traits = append(req.Traits, use(t, render.Trait, trait.Type, raw(trait.Properties)))
		used["TraitDefinition "+trait.Type] = true
	}
	rendered, err := render.Render(req)
	if err != nil {
		return "", err
	}
	out := map[string]any{}
	if rendered.Workload != nil {
		out["output"] = rendered.Workload.Object
	}
	outputs := map[string]any{}
	for _, a := range rendered.Auxiliaries {
		outputs[a.Name] = a.Object
	}
	if len(outputs) > 0 {
		out["outputs"] = outputs
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

func TestAChartIsHealthyWhenItsWorkloadsAre(t *testing.T) {
	deployment := func(generation, want, ready int) map[string]any {
		return map[string]any{"kind": "Deployment", "metadata": map[string]any{"name": "web", "generation": 1}, "spec": map[string]any{"replicas": want},
			"status": map[string]any{"observedGeneration": generation, "readyReplicas": ready, "updatedReplicas": ready}}
	}
	thing := func(status string) map[string]any {
		return map[string]any{"kind": "Thing", "metadata": map[string]any{"name": "one"}, "status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}}
	}
	fresh := map[string]any{"kind": "DaemonSet", "metadata": map[string]any{"name": "d", "generation": 1}, "spec": map[string]any{}}
	config := map[string]any{"kind": "ConfigMap", "metadata": map[string]any{"name": "c"}}
	ready := `{"healthStatus": [{"resource": {"kind": "Thing"}, "condition": {"type": "Ready"}}]}`
	for name, c := range map[string]struct {
		outputs    map[string]any
		properties string
		healthy    bool
		message    string
	}{
		"no workloads":              {map[string]any{"c": config}, `{}`, true, "Ready:0/0"},
		"ready":                     {map[string]any{"c": config, "d": deployment(1, 2, 2)}, `{}`, true, "Ready:1/1"},
		"too few":                   {map[string]any{"d": deployment(1, 2, 1)}, `{}`, false, "Ready:0/1"},
		"none wanted":               {map[string]any{"d": deployment(1, 0, 0)}, `{}`, true, "Ready:1/1"},
		"about to change":           {map[string]any{"d": deployment(0, 2, 2)}, `{}`, false, "Ready:1/1"},
		"not seen by its own yet":   {map[string]any{"d": fresh}, `{}`, false, "Ready:0/1"},
		"a condition that is met":   {map[string]any{"t": thing("True")}, ready, true, "Ready:0/0"},
		"a condition that is not":   {map[string]any{"t": thing("False")}, ready, false, "Ready:0/0"},
		"an object that is missing": {map[string]any{"c": config}, ready, false, "Ready:0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			outputs := map[string][]byte{}
			for name, o := range c.outputs {
				data, err := json.Marshal(o)
				if err != nil {
					t.Fatal(err)
				}
				outputs[name] = data
			}
			s, err := use(t, render.Component, "helmchart", nil).Template.State(&render.Live{Properties: []byte(c.properties), Outputs: outputs})
			if err != nil || s.Healthy != c.healthy || s.Message != c.message {
				t.Errorf("healthy %t, %q, %v", s.Healthy, s.Message, err)
			}
		})
	}
}
