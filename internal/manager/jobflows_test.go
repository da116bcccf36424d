package manager_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flow "lockstep.dev/lockstep/api/flow/v1alpha1"
)

var jobFlows = flow.GroupVersion.WithResource("jobflows")

// TestRolesOfJobFlows checks who may write JobFlows, and that the manager, with its own rights, runs
// them. The Jobs have no time to live, which the JobFlow outlives.
func TestRolesOfJobFlows(t *testing.T) {
	e := start(t)
	t.Cleanup(func() {
		_ = e.dyn.Resource(jobFlows).Namespace(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	other := e.other()
	manifests := func(namespace string) []string {
		return []string{`apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: short, namespace: ` + namespace + `}
spec:
  ttlSecondsAfterFinished: 0
  tasks:
  - name: main
    replicas: 1
    template:
      metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
      spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}
`, `apiVersion: flow.volcano.sh/v1alpha1
kind: JobTemplate
metadata: {name: then, namespace: ` + namespace + `}
spec:
  tasks:
  - name: main
    replicas: 1
    template:
      metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
      spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}
`, `apiVersion: flow.volcano.sh/v1alpha1
kind: JobFlow
metadata: {name: f, namespace: ` + namespace + `}
spec:
  flows:
  - name: short
  - {name: then, dependsOn: {targets: [short]}}
`}
	}
	e.tenant("reader", "view").forbidden(manifests(e.ns)...)
	mallory := e.tenant("mallory", "edit")
	mallory.forbidden(manifests(other)...)
	mallory.apply(strings.Join(manifests(e.ns), "---\n"))
	e.says(jobFlows, "f", `"phase":"Succeed"`, `"completedJobs":["f-short","f-then"]`)
	if list, err := e.dyn.Resource(jobs).Namespace(e.ns).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 2 {
		t.Errorf("%d Jobs, error %v", len(list.Items), err)
	}
}
