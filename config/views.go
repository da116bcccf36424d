package config

import (
	"embed"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

//go:embed views
var viewFiles embed.FS

// Views returns the ConfigMaps of queries (VelaQL) that clients of applications read by name from the
// namespace of the built-in definitions, and evaluate themselves: to find an application's pods,
// services, addresses and objects. The manager does not use them.
func Views() []*unstructured.Unstructured {
	entries, err := viewFiles.ReadDir("views")
	if err != nil {
		panic(err) // compiled in
	}
	var out []*unstructured.Unstructured
	for _, e := range entries {
		template, err := viewFiles.ReadFile("views/" + e.Name())
		if err != nil {
			panic(err)
		}
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]any{"template": string(template)},
		}}
		o.SetNamespace("vela-system")
		o.SetName(strings.TrimSuffix(e.Name(), ".cue"))
		out = append(out, o)
	}
	return out
}
