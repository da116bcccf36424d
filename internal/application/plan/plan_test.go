package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// builtin returns the built-in definitions.
type builtin map[string]*render.Template

func (b builtin) Component(_, name string) (*render.Template, error) {
	return b.find("component", name)
}
func (b builtin) Policy(_, name string) (*render.Template, error) { return b.find("policy", name) }
func (b builtin) Trait(_, name string) (*render.Template, error)  { return b.find("trait", name) }

func (b builtin) find(kind, name string) (*render.Template, error) {
	if t := b[kind+"-"+name]; t != nil {
		return t, nil
	}
	return nil, errors.New("no " + kind + " " + name)
}

func loadBuiltin(t testing.TB) builtin {
	t.Helper()
	out := builtin{}
	for _, d := range config.Definitions() {
		object, err := render.ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var def *render.Definition
		switch {
		case strings.HasPrefix(d.File, "component-"):
			var o oam.ComponentDefinition
			err = json.Unmarshal(data, &o)
			def = render.OfComponent(&o)
		case strings.HasPrefix(d.File, "trait-"):
			var o oam.TraitDefinition
			err = json.Unmarshal(data, &o)
			def = render.OfTrait(&o)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[strings.TrimSuffix(d.File, ".cue")], err = render.Compile(def, render.InProcess()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// everyKind implements Kinds: all kinds but a few are namespaced.
type everyKind struct{}

func (everyKind) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	return !strings.HasPrefix(gvk.Kind, "Cluster"), nil
}

func specOf(t testing.TB, manifest string) *oam.ApplicationSpec {
	t.Helper()
	var spec oam.ApplicationSpec
	if err := yaml.UnmarshalStrict([]byte(manifest), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

const small = `
components:
- name: %[1]s
  type: webservice
  properties: {image: nginx, cpu: "0.5", ports: [{port: 80}], env: [{name: A, value: "1"}]}
  traits:
  - type: scaler
    properties: {replicas: 0}
- name: %[1]s-config
  type: k8s-objects
  properties:
    objects:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s}, data: {k: v}}
    - {apiVersion: v1, kind: Secret, metadata: {name: %[1]s}, stringData: {k: v}}
`

// BenchmarkMemo measures the CPU time that a plan of a small Application takes, with and without a
// memo: of Applications that differ in their names only, and of those whose images differ, too.
// docs/decisions/memo-of-renderings.md has the results.
func BenchmarkMemo(b *testing.B) {
	defs := loadBuiltin(b)
	cpu := func() time.Duration {
		var used syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			b.Fatal(err)
		}
		return time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	for _, c := range []struct {
		name      string
		memo      *plan.Memo
		different bool
	}{
		{"equal/on", &plan.Memo{}, false}, {"equal/off", nil, false}, {"different/on", &plan.Memo{}, true}, {"different/off", nil, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			i, began := 0, cpu()
			for b.Loop() {
				i++
				name := fmt.Sprintf("app-%05d", i)
				manifest := fmt.Sprintf(small, name)
				if c.different {
					manifest = strings.Replace(manifest, "nginx", fmt.Sprintf("nginx:%d", i), 1)
				}
				_, err := plan.Make(&plan.Input{
					Namespace: "default", Name: name, Revision: name + "-v1", RevisionNum: 1, Spec: specOf(b, manifest),
					Clusters: plan.Local{Kinds: everyKind{}}, Memo: c.memo,
				}, defs)
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu()-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

func BenchmarkHealth(b *testing.B) {
	defs := loadBuiltin(b)
	t, err := defs.Component("", "webservice")
	if err != nil {
		b.Fatal(err)
	}
	live := []byte(`{"metadata":{"generation":1},"spec":{"replicas":1},"status":{"replicas":1,"readyReplicas":1,"updatedReplicas":1,"observedGeneration":1}}`)
	for b.Loop() {
		s, err := t.State(&render.Live{Context: render.Context{Name: "web", AppName: "shop"}, Output: live})
		if err != nil || !s.Healthy {
			b.Fatal(s, err)
		}
	}
}
