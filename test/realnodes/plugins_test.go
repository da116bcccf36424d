package realnodes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// plugins are two executor plugins, which are scripts. Both want their token. The one that is asked
// first says that no template is its own; the other wants to be called again once, and then
// succeeds.
var plugins = plugin("first", 14355, `say '200 OK' '{}'`) + "\n---\n" + plugin("hello", 14356, `
      if [ -e /var/run/secrets/kubernetes.io/serviceaccount/token ]; then say '500 Error' 'a token of the pod'
      elif [ ! -e /tmp/again ]; then touch /tmp/again; say '200 OK' '{"node": {"phase": "Running"}, "requeue": "1s"}'
      else say '200 OK' '{"node": {"phase": "Succeeded", "message": "Hello!", "outputs": {"parameters": [{"name": "said", "value": "hello"}]}}}'
      fi`)

func plugin(name string, port int, answer string) string {
	return fmt.Sprintf(`
metadata: {name: %[1]s-executor-plugin, labels: {workflows.argoproj.io/configmap-type: ExecutorPlugin}}
data:
  sidecar.automountServiceAccountToken: "false"
  sidecar.container: |
    name: %[1]s
    image: localhost/busybox:1
    command: [sh, -c]
    args:
    - |
      cat > /tmp/serve <<'E'
      #!/bin/sh
      allowed=no length=0
      token=$(cat /var/run/argo/token)
      while read -r line; do
        line=$(printf %%s "$line" | tr -d '\r')
        case "$line" in
        "") break ;;
        "Authorization: Bearer $token") allowed=yes ;;
        Content-Length:*) length=${line#*: } ;;
        esac
      done
      dd bs=1 count=$length of=/dev/null 2>/dev/null
      say() { printf 'HTTP/1.0 %%s\r\n\r\n%%s' "$1" "$2"; }
      [ $allowed = yes ] || { say '403 Forbidden' 'who?'; exit; }
      %[3]s
      E
      chmod +x /tmp/serve
      while true; do nc -l -p %[2]d -e /tmp/serve; done
    ports: [{containerPort: %[2]d}]
    resources: {requests: {cpu: 1m, memory: 8Mi}, limits: {cpu: 500m, memory: 64Mi}}
    securityContext: {runAsUser: 0}
`, name, port, strings.TrimSpace(answer))
}

// TestPlugins runs a plugin template with real containers: the plugins are asked until one takes it,
// with its token, and again when it wants to be.
func TestPlugins(t *testing.T) {
	e := shared.get(t)
	namespace, client := e.namespace(t), e.workflows(t)
	for _, text := range strings.Split(plugins, "\n---\n") {
		m := &corev1.ConfigMap{}
		if err := yaml.UnmarshalStrict([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		if _, err := e.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plug"}}
	w.SetGroupVersionKind(wf.GroupVersion.WithKind("Workflow"))
	if err := yaml.UnmarshalStrict([]byte(`
entrypoint: main
templates:
- {name: main, steps: [[{name: a, template: hello}], [{name: b, template: use, arguments: {parameters: [{name: p, value: "{{steps.a.outputs.parameters.said}}"}]}}]]}
- {name: hello, retryStrategy: {limit: 20, retryPolicy: OnError}, outputs: {parameters: [{name: said, valueFrom: {supplied: {}}}]}, plugin: {hello: {}}}
- {name: use, inputs: {parameters: [{name: p}]}, container: {image: "localhost/busybox:1", command: [test, "{{inputs.parameters.p}}", "=", hello]}}
`), &w.Spec); err != nil {
		t.Fatal(err)
	}
	if err := client.Post().Namespace(namespace).Resource("workflows").Body(w).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	var now wf.Workflow
	eventually(t, "the end of the workflow", func(ctx context.Context) (bool, error) {
		now = wf.Workflow{}
		err := client.Get().Namespace(namespace).Resource("workflows").Name("plug").Do(ctx).Into(&now)
		return now.Status.Phase.Completed(), err
	})
	e.check(t, &workflowCase{nodes: map[string][]string{"a": {"Retry Succeeded", `said="hello"`}, "b": {"Succeeded"}}}, &now)
}
