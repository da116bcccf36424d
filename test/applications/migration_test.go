package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestMigration hands applications over from KubeVela: the objects of each case exist as KubeVela
// renders them, with its labels and annotations, before Lockstep gets the application. Lockstep may
// change nothing but labels and annotations, so that no pod is restarted.
func TestMigration(t *testing.T) {
	w := open(t)
	names, err := filepath.Glob("testdata/migration/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range names {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err := yaml.UnmarshalStrict(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, text := range list {
			t.Run(fmt.Sprint(text["name"]), func(t *testing.T) {
				t.Parallel()
				r := &run{T: t, w: w, ns: localtest.Namespace(t, w.core)}
				c := r.handedOver(text)
				var before []*unstructured.Unstructured
				for _, o := range c.Objects {
					before = append(before, r.made(&unstructured.Unstructured{Object: o}, fmt.Sprint(c.Component["type"])))
				}
				c.Component["name"] = "web"
				if c.Phase == "" {
					c.Phase = "running"
				}
				r.stage(&stage{
					App:  map[string]any{"metadata": map[string]any{"name": "shop"}, "spec": map[string]any{"components": []any{c.Component}}},
					Wait: &state{Phase: c.Phase},
				})
				for _, b := range before {
					var live *unstructured.Unstructured
					eventually(t, b.GetKind()+" "+b.GetName()+" is Lockstep's", func() error {
						var err error
						if live, err = r.get(b); err != nil {
							return err
						}
						if live.GetLabels()[oam.RenderHashLabel] == b.GetLabels()[oam.RenderHashLabel] {
							return errors.New("its labels are KubeVela's")
						}
						return nil
					})
					if diff := cmp.Diff(content(b), content(live)); diff != "" {
						t.Errorf("%s %s changed (-before +after):\n%s", b.GetKind(), b.GetName(), diff)
					}
				}
			})
		}
	}
}

// handOver is a case of TestMigration.
type handOver struct {
	Name      string         `json:"name"`
	Component map[string]any `json:"component"`
	// Phase is the phase that the application reaches; running by default.
	Phase string `json:"phase"`
	// Others are objects that KubeVela's controller did not make.
	Others []map[string]any `json:"others"`
	// Objects are those that it made.
	Objects []map[string]any `json:"objects"`
}

// handedOver reads a case, in which ${ns} is the namespace and ${charts} the address of charts.
func (r *run) handedOver(text map[string]any) *handOver {
	r.Helper()
	data, err := json.Marshal(text)
	if err != nil {
		r.Fatal(err)
	}
	c := &handOver{}
	data = []byte(strings.NewReplacer("${ns}", r.ns, "${charts}", r.w.charts).Replace(string(data)))
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		r.Fatal(err)
	}
	for _, o := range c.Others {
		r.apply(o)
	}
	return c
}

// made creates an object with the labels and annotations that KubeVela's controller puts on it, and
// returns it as the API server stores it.
func (r *run) made(u *unstructured.Unstructured, component string) *unstructured.Unstructured {
	r.Helper()
	applied, err := json.Marshal(u.Object)
	if err != nil {
		r.Fatal(err)
	}
	labels := map[string]string{
		oam.AppNameLabel: "shop", oam.AppNamespaceLabel: r.ns, oam.AppComponentLabel: "web", oam.AppRevisionLabel: "shop-v1",
		oam.RenderHashLabel: "5b6c7d8e9f0a1b2c", "app.oam.dev/resourceType": "WORKLOAD", "workload.oam.dev/type": component, "app.oam.dev/revision": "",
	}
	if u.GetLabels()["trait.oam.dev/resource"] != "" {
		maps.Copy(labels, map[string]string{"app.oam.dev/resourceType": "TRAIT", "trait.oam.dev/type": "AuxiliaryWorkload"})
		delete(labels, "workload.oam.dev/type")
	}
	maps.Copy(labels, u.GetLabels())
	u.SetLabels(labels)
	annotations := map[string]string{
		"app.oam.dev/last-applied-configuration": string(applied), "app.oam.dev/last-applied-time": "2026-11-20T15:54:09Z", "oam.dev/kubevela-version": "v1.10.3",
	}
	maps.Copy(annotations, u.GetAnnotations())
	u.SetAnnotations(annotations)
	made, err := r.put(u)
	if err != nil {
		r.Fatal(err)
	}
	return made
}

// content returns an object without its labels and annotations and without what Kubernetes itself
// writes.
func content(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	for _, field := range []string{"labels", "annotations", "managedFields", "resourceVersion"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	delete(u.Object, "status")
	return u.Object
}
