package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
)

// TestLimitsAreThoseOfQuotas checks from which limits a kubelet makes quotas.
func TestLimitsAreThoseOfQuotas(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want map[string]int64
	}{
		"all containers have limits": {`
containers:
- {name: a, resources: {limits: {cpu: 2}}}
- {name: b, resources: {limits: {cpu: 500m}}}`, map[string]int64{"a": 2000, "b": 500, desired.WholePod: 2500}},
		"one has none, so the pod has none": {`
containers:
- {name: a, resources: {limits: {cpu: 2}}}
- {name: b}`, map[string]int64{"a": 2000}},
		"a large init container": {`
initContainers: [{name: i, resources: {limits: {cpu: 4}}}]
containers: [{name: a, resources: {limits: {cpu: 2}}}]`, map[string]int64{"i": 4000, "a": 2000, desired.WholePod: 4000}},
		"a sidecar": {`
initContainers: [{name: s, restartPolicy: Always, resources: {limits: {cpu: 1}}}]
containers: [{name: a, resources: {limits: {cpu: 2}}}]`, map[string]int64{"s": 1000, "a": 2000, desired.WholePod: 3000}},
		"a limit of the pod": {`
resources: {limits: {cpu: 3}}
containers: [{name: a}]`, map[string]int64{desired.WholePod: 3000}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if err := yaml.Unmarshal([]byte(c.spec), &pod.Spec); err != nil {
				t.Fatal(err)
			}
			kept := &corev1.Pod{}
			keep(kept, pod)
			if diff := cmp.Diff(c.want, limitsOf(kept)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
