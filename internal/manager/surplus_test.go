package manager_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// TestPodsAboveTheMinimumComeLast lets three jobs wait for a full cluster, the oldest of which would
// take all of it.
func TestPodsAboveTheMinimumComeLast(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("before", 8, "", ""))
	e.runs("before", 8)
	e.apply(jobYAML("elastic", 64, "minAvailable: 1", ""))
	e.waits("elastic", "cpu")
	e.apply(jobYAML("one", 1, "", ""))
	e.apply(jobYAML("two", 1, "", ""))
	e.waits("one", "cpu")
	e.waits("two", "cpu")
	e.deleteJob("before")
	e.runs("one", 1)
	e.runs("two", 1)
	j := e.runs("elastic", 6)
	if c := j.Status.Condition(batch.JobScheduled); c != nil {
		t.Errorf("it runs, and says that it waits: %+v", c)
	}
	e.until("elastic", says(batch.JobSurplusScheduled, "NotEnoughResources", "pods above the minimum wait: not enough cpu"))
	// The reason stays while some of them get room, and goes with the last of them.
	e.deleteJob("one")
	e.deleteJob("two")
	e.runs("elastic", 8)
	e.until("elastic", says(batch.JobSurplusScheduled, "NotEnoughResources", "pods above the minimum wait: not enough cpu"))
	e.patchJob("elastic", `[{"op": "replace", "path": "/spec/tasks/0/replicas", "value": 8}]`)
	e.until("elastic", func(j *batch.Job) error {
		if c := j.Status.Condition(batch.JobSurplusScheduled); c != nil {
			return fmt.Errorf("all pods have nodes, and it says %q", c.Message)
		}
		return nil
	})
}

// TestAFIFOQueueIsNotHeldUpBySurplus has a job whose pods above the minimum wait in a FIFO queue: the next
// job starts, and one behind a job that waits for its minimum does not, and says so.
func TestAFIFOQueueIsNotHeldUpBySurplus(t *testing.T) {
	e, _ := startEvicting(t)
	fifo := e.ns + "-fifo"
	e.queue(fifo, func(s *scheduling.QueueSpec) { s.DequeueStrategy = scheduling.DequeueFIFO })
	e.apply(jobYAML("before", 7, "", ""))
	e.runs("before", 7)
	e.apply(jobYAML("elastic", 64, "minAvailable: 1\n  queue: "+fifo, ""))
	e.runs("elastic", 1)
	e.apply(jobYAML("next", 1, "queue: "+fifo, ""))
	e.waits("next", "cpu")
	e.patchJob("before", `[{"op": "replace", "path": "/spec/minAvailable", "value": 5}, {"op": "replace", "path": "/spec/tasks/0/replicas", "value": 6}]`)
	e.runs("next", 1)
	e.apply(jobYAML("large", 9, "queue: "+fifo, ""))
	e.waits("large", "cpu")
	e.apply(jobYAML("small", 1, "queue: "+fifo, ""))
	e.until("small", both(inPhase(batch.Pending), says(batch.JobScheduled, "BehindFirst", "spec.queue", fifo, "dequeueStrategy: fifo")))
	e.deleteJob("large")
	e.deleteJob("before")
	e.runs("small", 1)
}

// TestGatedPodsAreCounted has a job whose pods have a scheduling gate.
func TestGatedPodsAreCounted(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: gated}
spec:
  tasks:
  - name: main
    replicas: 2
    template:
      spec:
        terminationGracePeriodSeconds: 0
        schedulingGates: [{name: example.com/wait}]
        containers: [{name: main, image: busybox, resources: {requests: {cpu: "1"}}}]`)
	e.until("gated", says(batch.JobScheduled, batch.ReasonGated, "2 pods of the job have scheduling gates"))
	for _, pod := range []string{"gated-main-0", "gated-main-1"} {
		patch := []byte(`[{"op": "remove", "path": "/spec/schedulingGates"}]`)
		if _, err := e.core.CoreV1().Pods(e.ns).Patch(t.Context(), pod, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if j := e.runs("gated", 2); j.Status.Condition(batch.JobScheduled) != nil {
		t.Errorf("status %s", asJSON(j.Status))
	}
}

// TestAJobThatGrowsOvertakesNobody lets a job of higher priority wait for a full cluster, and then
// raises the minimum of a job that runs.
func TestAJobThatGrowsOvertakesNobody(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("grown", 2, "minAvailable: 2", ""))
	e.apply(jobYAML("short", 1, "", ""))
	e.apply(jobYAML("long", 5, "", ""))
	e.runs("grown", 2)
	e.runs("short", 1)
	e.runs("long", 5)
	e.apply(jobYAML("first", 1, "priorityClassName: patient", ""))
	e.waits("first", "cpu")
	e.patchJob("grown", `[{"op": "replace", "path": "/spec/minAvailable", "value": 3}, {"op": "replace", "path": "/spec/tasks/0/replicas", "value": 3}]`)
	e.waits("grown", "cpu")
	e.deleteJob("short")
	e.runs("first", 1)
	if n := len(e.podsOf("grown")); n != 2 {
		t.Errorf("the job that grows has %d pods", n)
	}
	e.deleteJob("first")
	e.runs("grown", 3)
}
