package controller_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

const pluginMap = `
metadata: {name: NAME-executor-plugin, labels: {workflows.argoproj.io/configmap-type: ExecutorPlugin}}
data:
  sidecar.automountServiceAccountToken: "false"
  sidecar.container: |
    name: NAME
    image: plugin
    command: [serve]
    ports: [{containerPort: 4355}]
    resources: {requests: {cpu: 1m, memory: 8Mi}, limits: {cpu: 10m, memory: 16Mi}}
    securityContext: {runAsNonRoot: true, runAsUser: 65534}
`

// TestPluginsOfTheNamespace checks that the pod of a plugin template has the plugins of the
// workflow's namespace and of the manager's as sidecars, and no others; and that a workflow without
// any says so.
func TestPluginsOfTheNamespace(t *testing.T) {
	e := start(t)
	put := func(namespace, name, label string) {
		t.Helper()
		m := &corev1.ConfigMap{}
		if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(pluginMap, "NAME", name)), m); err != nil {
			t.Fatal(err)
		}
		m.Labels[wf.LabelConfigMapType] = label
		if _, err := e.core.CoreV1().ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.core.CoreV1().ConfigMaps(namespace).Delete(e.Context(), m.Name, metav1.DeleteOptions{}) })
	}
	const spec = `
entrypoint: main
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"plain":true,"message":"Hello!"}'}}
  plugin: {hello: {}}
`
	e.submit("none", spec)
	e.until("none", func(w *wf.Workflow) error {
		if w.Status.Phase != wf.WorkflowError || !strings.Contains(table(w), "there is no executor plugin") {
			return fmt.Errorf("no plugin, and no message")
		}
		return nil
	})
	other := localtest.NamespaceForPods(t, e.core)
	put(other, "foreign", wf.ConfigMapTypePlugin)
	put(e.ns, "unlabelled", "Parameter")
	put("lockstep-system", "shared", wf.ConfigMapTypePlugin)
	put(e.ns, "own", wf.ConfigMapTypePlugin)
	var names []string
	e.eventually("the plugins are known", func() error { // the watch shows them
		name := fmt.Sprintf("some-%d", len(names))
		names = append(names, name)
		e.submit(name, spec)
		w := e.until(name, func(w *wf.Workflow) error {
			if !w.Status.Phase.Completed() {
				return fmt.Errorf("still running")
			}
			return nil
		})
		var sidecars []string
		for _, pod := range e.pods(name) {
			for _, c := range pod.Spec.InitContainers {
				sidecars = append(sidecars, c.Name)
			}
		}
		if got := strings.Join(sidecars, " "); got != "tokens own shared" || w.Status.Phase != wf.WorkflowSucceeded || !strings.Contains(table(w), "Plugin Succeeded: Hello!") {
			return fmt.Errorf("the pod has %q\n%s", got, table(w))
		}
		return nil
	})
}
