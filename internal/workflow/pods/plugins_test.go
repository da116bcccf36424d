package pods

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestFindPlugins checks which of the ConfigMaps become plugins, in which order, and what is wrong
// with the others.
func TestFindPlugins(t *testing.T) {
	const container = "{name: c, image: IMAGE, ports: [{containerPort: 4355}], securityContext: {}, resources: {requests: {cpu: 1m}, limits: {cpu: 1m}}}"
	plugin := func(namespace, name, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{
			"sidecar.container": strings.ReplaceAll(text, "IMAGE", namespace+"/"+name), "sidecar.automountServiceAccountToken": "true",
		}}
	}
	good := []*corev1.ConfigMap{
		plugin("ns", "slack-executor-plugin", container), plugin("system", "slack-executor-plugin", container), plugin("system", "hello-executor-plugin", container),
	}
	one := func(text string) []*corev1.ConfigMap {
		return []*corev1.ConfigMap{plugin("ns", "x-executor-plugin", text)}
	}
	for name, c := range map[string]struct {
		maps        []*corev1.ConfigMap
		wanted      string
		want, fault string
	}{
		"those of the namespace come first": {good, "", "hello=system/hello-executor-plugin slack=ns/slack-executor-plugin", ""},
		"only those that are named":         {good, "slack", "slack=ns/slack-executor-plugin", ""},
		"one that does not exist":           {good, "slack none", "", "executorPlugins: there is no executor plugin 'none'"},
		"a broken one is set apart":         {append(one("{}"), good...), "slack", "slack=ns/slack-executor-plugin", ""},
		"a broken one that is named":        {one("{}"), "x", "", "executor plugin ns/x-executor-plugin: sidecar.container.name: is required"},
		"no container":                      {[]*corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "x"}}}, "", "x!sidecar.container: is required", ""},
		"no port":                           {one("{name: c}"), "", "x!sidecar.container.ports: is required", ""},
		"no resources":                      {one("{name: c, ports: [{containerPort: 1}]}"), "", "x!sidecar.container.resources: needs requests and limits", ""},
		"no security context":               {one("{name: c, ports: [{containerPort: 1}], resources: {requests: {cpu: 1}, limits: {cpu: 1}}}"), "", "x!sidecar.container.securityContext: is required", ""},
		"an unknown field":                  {one("{name: c, port: 1}"), "", `x!unknown field "port"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var wanted []wf.ExecutorPlugin
			for _, w := range strings.Fields(c.wanted) {
				wanted = append(wanted, wf.ExecutorPlugin{Name: w})
			}
			found, err := FindPlugins(wanted, c.maps)
			if c.fault != "" {
				if err == nil || err.Error() != c.fault {
					t.Errorf("%v, want %s", err, c.fault)
				}
				return
			}
			var got []string
			for _, p := range found {
				if p.Fault != "" {
					_, fault, _ := strings.Cut(c.want, "!")
					if !strings.Contains(p.Fault, fault) {
						t.Errorf("%s, want %s", p.Fault, fault)
					}
					got = append(got, p.Name+"!"+fault)
					continue
				}
				if !p.Token {
					t.Errorf("%s gets no token", p.Name)
				}
				got = append(got, p.Name+"="+p.Container.Image)
			}
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
