package applications

import (
	"encoding/json"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/config"
)

// evaluateView evaluates a view as a client does: with parameters, and with what its operation has found
// merged into the operation.
func evaluateView(t *testing.T, view, parameters, found string) map[string]any {
	t.Helper()
	for _, o := range config.Views() {
		if o.GetName() != view {
			continue
		}
		template, _, _ := unstructured.NestedString(o.Object, "data", "template")
		before, after, ok := strings.Cut(template, `import "vela/ql"`)
		if !ok || o.GetNamespace() != "vela-system" {
			t.Fatalf("%s/%s is %s", o.GetNamespace(), view, template)
		}
		source := before + after + `
ql: {
	let operation = {err?: string, list?: [...{...}], app: {name: string, namespace: string, filter?: {cluster?: string, clusterNamespace?: string, components?: [...string]}}, ...}
	#CollectPods:             operation
	#CollectServices:         operation
	#CollectServiceEndpoints: operation
	#ListAppliedResources:    operation
	#GetApplicationTree:      operation
	#Read: {err?: string, value: {...}, ...}
}
parameter: ` + parameters + `
found: ` + found + "\n"
		v := cuecontext.New().CompileString(source)
		data, err := v.LookupPath(cue.ParsePath("status")).MarshalJSON()
		if err != nil {
			t.Fatalf("%s: %v", view, err)
		}
		status := map[string]any{}
		if err := json.Unmarshal(data, &status); err != nil {
			t.Fatal(err)
		}
		return status
	}
	t.Fatalf("there is no view %s", view)
	return nil
}

// TestViewsAnswerWhatClientsRead compares the results of the views with the fields that the command
// line and the UI of others read.
func TestViewsAnswerWhatClientsRead(t *testing.T) {
	const app = `{appName: "shop", appNs: "prod"}`
	const resources = `{list: [{cluster: "local", component: "web", kind: "Deployment", name: "web", namespace: "prod"}]}`
	const listed = `[{cluster: local, component: web, kind: Deployment, name: web, namespace: prod}]`
	for name, c := range map[string]struct{ view, parameters, found, want string }{
		"pods": {"component-pod-view", `{appName: "shop", appNs: "prod", name: "web", cluster: "local", clusterNs: "prod"}`, `{list: [
	{cluster: "local", component: "web", workload: {apiVersion: "apps/v1", kind: "Deployment", name: "web", namespace: "prod"}, publishVersion: "v1", deployVersion: "",
		object: {metadata: {name: "web-1", namespace: "prod", creationTimestamp: "2026-01-01T00:00:00Z", labels: a: "b"}, spec: nodeName: "n1", status: {phase: "Running", hostIP: "10.0.0.1", podIP: "10.1.0.1"}}},
	{cluster: "local", component: "web", workload: {apiVersion: "apps/v1", kind: "Deployment", name: "web", namespace: "prod"},
		object: {metadata: {name: "web-2", namespace: "prod", creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {}, status: phase: "Pending"}}]}`, `
podList:
- cluster: local
  component: web
  workload: {apiVersion: apps/v1, kind: Deployment, name: web, namespace: prod}
  metadata: {name: web-1, namespace: prod, creationTime: "2026-01-01T00:00:00Z", labels: {a: b}, version: {publishVersion: v1, deployVersion: ""}}
  status: {phase: Running, nodeName: n1, hostIP: 10.0.0.1, podIP: 10.1.0.1}
- cluster: local
  component: web
  workload: {apiVersion: apps/v1, kind: Deployment, name: web, namespace: prod}
  metadata: {name: web-2, namespace: prod, creationTime: "2026-01-01T00:00:00Z", version: {}}
  status: {phase: Pending}`},
		"no pods":           {"component-pod-view", app, `{list: []}`, "podList: []"},
		"no such app":       {"component-pod-view", app, `{err: "not found"}`, "error: not found"},
		"services":          {"component-service-view", app, resources, "services: " + listed},
		"addresses":         {"service-endpoints-view", app, `{list: [{endpoint: {port: 80}, component: "web"}]}`, "endpoints: [{endpoint: {port: 80}, component: web}]"},
		"objects":           {"service-applied-resources-view", app, resources, "resources: " + listed},
		"objects of no app": {"service-applied-resources-view", app, `{err: "not found"}`, "error: not found"},
		"tree":              {"application-resource-tree-view", app, resources, "resources: " + listed},
		"revision": {"application-revision-view", `{name: "shop-v1", namespace: "prod"}`, `{value: {status: succeeded: true}}`,
			"{apiVersion: core.oam.dev/v1beta1, kind: ApplicationRevision, metadata: {name: shop-v1, namespace: prod}, status: {succeeded: true}}"},
		"no such revision": {"application-revision-view", `{name: "shop-v9", namespace: "prod"}`, `{err: "not found"}`, "error: not found"},
	} {
		t.Run(name, func(t *testing.T) {
			var want map[string]any
			if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, evaluateView(t, c.view, c.parameters, c.found)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
