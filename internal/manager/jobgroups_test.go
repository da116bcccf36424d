package manager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

// TestJobsGetPodGroupsOnRequest checks the PodGroups that a manager with JobPodGroups keeps: their
// spec, a write for each phase, what becomes of them when the job is suspended, resumed and ends.
func TestJobsGetPodGroupsOnRequest(t *testing.T) {
	e := startUnmanaged(t)
	stop := e.run(func(c *manager.Config) { c.JobPodGroups = true })
	e.apply(jobYAML("waits", 9, "minAvailable: 9", "")) // the cluster has room for 8
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: runs}
spec:
  minAvailable: 2
  tasks:
  - {name: a, replicas: 1, template: {spec: {terminationGracePeriodSeconds: 0, restartPolicy: Never, containers: [{name: x, image: busybox, resources: {requests: {cpu: 1, memory: 1Mi}}}]}}}
  - {name: b, replicas: 3, minAvailable: 1, template: {spec: {terminationGracePeriodSeconds: 0, restartPolicy: Never, containers: [{name: x, image: busybox, resources: {requests: {cpu: 100m}}}]}}}
`)
	name := func(job string) string { return job + "-" + string(e.job(job).UID) }
	group := func(job string, parts ...string) func() error {
		return func() error {
			pg, err := e.dyn.Resource(podGroupResource).Namespace(e.ns).Get(context.Background(), name(job), metav1.GetOptions{})
			if err != nil {
				return err
			}
			data, err := json.Marshal(pg)
			if err != nil {
				return err
			}
			for _, part := range parts {
				if !strings.Contains(string(data), part) {
					return fmt.Errorf("%s lacks %s", data, part)
				}
			}
			return nil
		}
	}
	gone := func(job string) func() error {
		return func() error {
			if group(job)() == nil {
				return fmt.Errorf("there is a PodGroup")
			}
			return nil
		}
	}
	e.eventually("the PodGroup of a job that waits says why", group("waits", `"phase":"Inqueue"`, `"type":"Unschedulable"`, "NotEnoughResources",
		`"minMember":9`, `"minTaskMember":{"main":9}`, `"queue":"default"`))
	e.eventually("so does an event", func() error {
		events, err := e.core.CoreV1().Events(e.ns).List(context.Background(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=PodGroup,reason=Unschedulable,involvedObject.name=" + name("waits")})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("there is none")
		}
		return err
	})
	e.eventually("the PodGroup of a job that runs says so", group("runs", `"phase":"Running"`, `"type":"Scheduled"`, `"minMember":2`,
		`"minTaskMember":{"a":1,"b":1}`, `"minResources":{"cpu":"1100m","memory":"1Mi"}`, `"name":"runs"`, `"controller":true`))
	if pod := e.podsOf("runs")[0]; pod.Annotations["scheduling.k8s.io/group-name"] != name("runs") {
		t.Errorf("the pods name the PodGroup %q", pod.Annotations["scheduling.k8s.io/group-name"])
	}
	//   1. A change of the job's minimum is a change of the PodGroup's.
	e.patchJob("runs", `[{"op":"replace","path":"/spec/minAvailable","value":3}]`)
	e.eventually("the PodGroup has the new minimum", group("runs", `"minMember":3`))
	//   2. Somebody deletes it.
	if err := e.dyn.Resource(podGroupResource).Namespace(e.ns).Delete(t.Context(), name("runs"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("there is a PodGroup again", group("runs", `"phase":"Running"`, `"minMember":3`))
	//   3. Suspended, resumed, and ended.
	e.command(bus.AbortJobAction, "Job", "runs")
	e.until("runs", inPhase(batch.Aborted))
	e.eventually("the suspended job has no PodGroup", gone("runs"))
	e.command(bus.ResumeJobAction, "Job", "runs")
	e.eventually("the resumed job has one", group("runs", `"phase":"Running"`))
	e.command(bus.CompleteJobAction, "Job", "runs")
	e.eventually("the PodGroup of an ended job is Completed", group("runs", `"phase":"Completed"`))
	//   4. Without the option nothing is written.
	stop()
	e.run()
	e.apply(jobYAML("without", 1, "", ""))
	e.runs("without", 1)
	if gone("without")() != nil {
		t.Error("a manager without the option made a PodGroup")
	}
}
