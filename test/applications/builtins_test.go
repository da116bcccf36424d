package applications

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

const builtins = "../../internal/application/render/testdata/builtins"

// unhealthy lists the cases whose applications do not become running. Their pods wait for volumes,
// node labels or controllers that do not exist here, or run until a user ends them.
var unhealthy = []string{
	"batch-job", "workflow", "task", "webservice", "worker", "trait-storage", "trait-pvc", "trait-node-affinity",
	"trait-topologyspreadconstraints",
}

// refused lists the cases whose objects the API server does not accept. They only show how patches
// are merged.
var refused = []string{"trait-env-containers", "trait-init-container", "trait-json-merge-patch"}

// TestBuiltins deploys the input of each built-in component and trait, and checks that the objects
// that it renders to are in the cluster.
func TestBuiltins(t *testing.T) {
	w := open(t)
	names, err := filepath.Glob(builtins + "/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range names {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			ns := localtest.Namespace(t, w.core)
			source, want, _ := strings.Cut(strings.NewReplacer("prod", ns, "https://charts.example.com", w.charts+"/charts").Replace(string(data)), "\n---\n")
			var component map[string]any
			if err := yaml.Unmarshal([]byte(source), &component); err != nil {
				t.Fatal(err)
			}
			r := &run{T: t, w: w, ns: ns}
			app := map[string]any{"metadata": map[string]any{"name": "shop"}, "spec": map[string]any{"components": []any{component}}}
			if slices.Contains(refused, name) {
				r.stage(&stage{App: app, Wait: &state{Says: map[string]string{"Ready": "is invalid"}}})
				return
			}
			if strings.HasPrefix(want, "error: ") {
				r.stage(&stage{App: app, Wait: &state{Says: map[string]string{"Ready": component["name"].(string)}}})
				return
			}
			phase := "running"
			if slices.Contains(unhealthy, name) {
				phase = "runningWorkflow"
			}
			s := &stage{App: app, Wait: &state{Phase: phase}}
			var made struct {
				Output  map[string]any            `json:"output"`
				Outputs map[string]map[string]any `json:"outputs"`
			}
			if err := yaml.Unmarshal([]byte(want), &made); err != nil {
				t.Fatal(err)
			}
			for _, o := range append(slices.Collect(maps.Values(made.Outputs)), made.Output) {
				if o["kind"] != nil { // the input of a chart is not an object
					s.Objects = append(s.Objects, normal(t, o, component["name"].(string)))
				}
			}
			r.stage(s)
		})
	}
}

// normal returns an object as the API server writes it. An object without a name gets name.
func normal(t *testing.T, o map[string]any, name string) map[string]any {
	t.Helper()
	u := &unstructured.Unstructured{Object: o}
	if u.GetName() == "" {
		u.SetName(name)
	}
	typed, err := plan.Typed(o)
	if err != nil {
		t.Fatal(err)
	}
	if typed != nil {
		kind, version := u.GetKind(), u.GetAPIVersion()
		if u.Object, err = runtime.DefaultUnstructuredConverter.ToUnstructured(typed); err != nil {
			t.Fatal(err)
		}
		u.SetKind(kind)
		u.SetAPIVersion(version)
	}
	delete(u.Object, "status")
	delete(u.Object, "stringData")
	return withoutNulls(u.Object).(map[string]any)
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if item == nil || k == "app.oam.dev/revision" { // a hash of the component
				delete(v, k)
			} else {
				v[k] = withoutNulls(item)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return v
}
