package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

var cronJobs = batch.GroupVersion.WithResource("cronjobs")

// TestRolesOfCronJobs checks who may write CronJobs, and that the manager, with its own rights,
// creates their Jobs in their namespace and runs them.
func TestRolesOfCronJobs(t *testing.T) {
	e := start(t)
	t.Cleanup(func() {
		_ = e.dyn.Resource(cronJobs).Namespace(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	other := e.other()
	manifest := func(namespace string) string {
		return `apiVersion: batch.volcano.sh/v1alpha1
kind: CronJob
metadata: {name: often, namespace: ` + namespace + `}
spec:
  schedule: "@every 1s"
  concurrencyPolicy: Forbid
  jobTemplate:
    metadata: {namespace: ` + other + `}
    spec:
      tasks:
      - name: main
        replicas: 1
        template:
          metadata: {annotations: {lockstep.dev/sim-duration: 100ms}}
          spec: {restartPolicy: Never, containers: [{name: main, image: busybox}]}
`
	}
	e.tenant("reader", "view").forbidden(manifest(e.ns))
	mallory := e.tenant("mallory", "edit")
	mallory.forbidden(manifest(other))
	mallory.apply(manifest(e.ns))
	e.says(cronJobs, "often", `"lastSuccessfulTime"`, "not acted on: spec.jobTemplate.metadata.namespace")
	if list, err := e.dyn.Resource(jobs).Namespace(other).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("another namespace has %d Jobs, error %v", len(list.Items), err)
	}
	// The history stays at its limit, and a deleted CronJob takes its Jobs along.
	e.eventually("Jobs are removed", func() error {
		list, err := e.dyn.Resource(jobs).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(list.Items); n < 3 || n > 5 {
			return fmt.Errorf("there are %d", n)
		}
		for _, j := range list.Items {
			if owner := metav1.GetControllerOf(&j); owner == nil || owner.Kind != "CronJob" || !strings.HasPrefix(j.GetName(), "often-") {
				t.Errorf("Job %s belongs to %v", j.GetName(), owner)
			}
		}
		return nil
	})
}
