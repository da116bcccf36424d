package applications

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Shape is the form of every application of a load.
type Shape string

// The shapes.
const (
	// Small is a Deployment, a ConfigMap and a Secret.
	Small Shape = "small"
	// Large is three Deployments, three Secrets and four ConfigMaps.
	Large Shape = "large"
	// Plain is two ConfigMaps and a Secret, which need no controllers in their cluster.
	Plain Shape = "plain"
)

// objects returns the number of objects of an application of the shape.
func (s Shape) objects() int {
	if s == Large {
		return 10
	}
	return 3
}

func name(i int) string { return fmt.Sprintf("app-%05d", i) }

// application returns the i-th application after some rounds of updates. clusters are its target
// clusters; nil means the local one.
func (s Shape) application(namespace string, i, round, replicas int, clusters []string) *oam.Application {
	app := &oam.Application{
		TypeMeta:   metav1.TypeMeta{APIVersion: oam.GroupVersion.String(), Kind: "Application"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(i)},
	}
	switch s {
	case Small:
		app.Spec.Components = []oam.Component{service(name(i), round, replicas)}
	case Plain:
		app.Spec.Components = []oam.Component{plain(name(i), round)}
	default:
		for part := range 3 {
			r := 0
			if part == 0 {
				r = round
			}
			app.Spec.Components = append(app.Spec.Components, service(fmt.Sprintf("%s-%c", name(i), 'a'+part), r, replicas))
		}
		app.Spec.Components = append(app.Spec.Components, oam.Component{
			Name: name(i) + "-d", Type: "k8s-objects",
			Properties: raw(map[string]any{"objects": []any{map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name(i) + "-d"}, "data": map[string]any{"key": "value"},
			}}}),
		})
	}
	if clusters != nil {
		app.Spec.Policies = []oam.AppPolicy{{Name: "where", Type: "topology", Properties: raw(map[string]any{"clusters": clusters})}}
	}
	return app
}

func plain(name string, round int) oam.Component {
	object := func(kind, suffix, field, value string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name + suffix}, field: map[string]any{"key": value}}
	}
	return oam.Component{Name: name, Type: "k8s-objects", Properties: raw(map[string]any{"objects": []any{
		object("ConfigMap", "-a", "data", fmt.Sprint(round)), object("ConfigMap", "-b", "data", "value"), object("Secret", "-c", "stringData", "none"),
	}})}
}

func service(name string, round, replicas int) oam.Component {
	return oam.Component{
		Name: name, Type: "webservice",
		Properties: raw(map[string]any{
			"image": "registry.k8s.io/pause:3.10", "cpu": "10m", "memory": "16Mi",
			"env": []any{map[string]any{"name": "ROUND", "value": fmt.Sprint(round)}},
		}),
		Traits: []oam.Trait{
			{Type: "scaler", Properties: raw(map[string]any{"replicas": replicas})},
			{Type: "storage", Properties: raw(map[string]any{
				"configMap": []any{map[string]any{"name": name + "-conf", "mountPath": "/conf", "data": map[string]any{"key": "value"}}},
				"secret":    []any{map[string]any{"name": name + "-cred", "mountPath": "/cred", "stringData": map[string]any{"password": "none"}}},
			})},
		},
	}
}

func raw(v any) *runtime.RawExtension {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers can always be encoded
	}
	return &runtime.RawExtension{Raw: data}
}
