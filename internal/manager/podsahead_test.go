package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
)

// provision adds nodes of 4 CPUs to the 4 nodes of the cluster, until there are count more, as an
// autoscaler would.
func (e *env) provision(count int) {
	e.Helper()
	nodes := e.core.CoreV1().Nodes()
	if err := localcluster.CreateNodes(e.Context(), e.core, localcluster.Nodes{Count: 4 + count, CPU: "4", Memory: "16Gi"}); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		for i := range count {
			_ = nodes.Delete(context.Background(), localcluster.NodeName(4+i), metav1.DeleteOptions{})
		}
	})
}

// pending waits until a job has this many pods, all of which wait for a node and say so in the way that
// autoscalers look for, and its status counts them. It returns their UIDs.
func (e *env) pending(job string, count int) (uids []string) {
	e.Helper()
	e.eventually(fmt.Sprintf("%d pods of job %s are pending", count, job), func() error {
		pods := e.podsOf(job)
		if len(pods) != count {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		uids = nil
		for i := range pods {
			p := &pods[i]
			at := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
			if p.Spec.NodeName != "" || len(p.Spec.SchedulingGates) > 0 || at < 0 {
				return fmt.Errorf("pod %s: %s", p.Name, asJSON(p.Status))
			}
			if c := p.Status.Conditions[at]; c.Status != corev1.ConditionFalse || c.Reason != corev1.PodReasonUnschedulable || !strings.Contains(c.Message, "pods") {
				return fmt.Errorf("pod %s: condition %s", p.Name, asJSON(c))
			}
			uids = append(uids, string(p.UID))
		}
		slices.Sort(uids)
		if s := e.job(job).Status; s.Pending != int32(count) || s.State.Phase != batch.Pending {
			return fmt.Errorf("status %s", asJSON(s))
		}
		return nil
	})
	return uids
}

// TestPodsOfWaitingJobs checks what autoscalers see with PodsOfWaitingJobs: the pods of a gang that does
// not fit, and none of gangs that their queues do not take; and that the gang starts as a whole, with one
// binding for each pod, when there are nodes for all of it.
func TestPodsOfWaitingJobs(t *testing.T) {
	e := startUnmanaged(t) // 4 nodes, with room for 2 pods each
	option := func(c *manager.Config) { c.PodsOfWaitingJobs = 100 }
	stop := e.run(option)
	closed := e.applyQueue("closed", "", "{weight: 1}")
	e.queueShows(closed, `"state":"Open"`)
	e.command(bus.CloseQueueAction, "Queue", closed)
	e.queueShows(closed, `"state":"Closed"`)
	limited := e.applyQueue("limited", "", `{weight: 1, capability: {cpu: "12"}}`)
	e.apply(jobYAML("fits", 2, "minAvailable: 2", ""))
	e.runs("fits", 2)
	e.apply(jobYAML("inclosed", 9, "minAvailable: 9\n  queue: "+closed, ""))
	e.apply(jobYAML("overlimit", 9, "minAvailable: 9\n  queue: "+limited, ""))
	e.apply(jobYAML("waits", 8, "minAvailable: 8", "")) // there is room for 6
	before := e.pending("waits", 8)

	//   1. A manager that is started again leaves the pods as they are.
	stop()
	stop = e.run(option)
	//   2. The job shrinks, grows, is suspended and resumed.
	e.patchJob("waits", `[{"op":"replace","path":"/spec/minAvailable","value":7},{"op":"replace","path":"/spec/tasks/0/replicas","value":7}]`)
	if after := e.pending("waits", 7); slices.ContainsFunc(after, func(uid string) bool { return !slices.Contains(before, uid) }) {
		t.Errorf("the pods of a job that shrinks were replaced: %v, before %v", after, before)
	}
	e.patchJob("waits", `[{"op":"replace","path":"/spec/minAvailable","value":8},{"op":"replace","path":"/spec/tasks/0/replicas","value":8}]`)
	before = e.pending("waits", 8)
	e.command(bus.AbortJobAction, "Job", "fits")
	e.until("fits", inPhase(batch.Aborted))
	e.runs("waits", 8)
	e.command(bus.AbortJobAction, "Job", "waits")
	e.until("waits", inPhase(batch.Aborted))
	e.command(bus.ResumeJobAction, "Job", "fits")
	e.runs("fits", 2)
	e.command(bus.ResumeJobAction, "Job", "waits")
	before = e.pending("waits", 8)
	e.command(bus.AbortJobAction, "Job", "waits")
	e.until("waits", inPhase(batch.Aborted))
	if left := e.podsOf("waits"); len(left) > 0 {
		t.Errorf("a suspended job has %d pods", len(left))
	}
	e.command(bus.ResumeJobAction, "Job", "waits")
	before = e.pending("waits", 8)

	//   3. A node that is too small for the rest of the gang changes nothing; with one more, the gang starts.
	binds := func() int { return managerWrites(t, e.c, e.ns)["pods/binding create"] }
	bound := binds()
	e.provision(1)
	e.apply(jobYAML("small", 1, "", "")) // goes where the gang does not fit
	e.runs("small", 1)
	if again := e.pending("waits", 8); !slices.Equal(again, before) {
		t.Errorf("pods were replaced: %v, before %v", again, before)
	}
	e.provision(3)
	e.runs("waits", 8)
	var after []string
	for _, p := range e.podsOf("waits") {
		after = append(after, string(p.UID))
	}
	if slices.Sort(after); !slices.Equal(after, before) {
		t.Errorf("the pods that run are not those that waited: %v, before %v", after, before)
	}
	if n := binds() - bound; n != 8 {
		t.Errorf("%d bindings for 8 pods", n)
	}

	//   4. Queues that do not take a job, and deletion.
	for _, job := range []string{"inclosed", "overlimit"} {
		if n := len(e.podsOf(job)); n > 0 {
			t.Errorf("job %s, which its queue does not take, has %d pods", job, n)
		}
	}
	e.apply(jobYAML("deleted", 20, "minAvailable: 20", ""))
	e.pending("deleted", 20)
	if err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("nothing of the deleted job is left", func() error {
		if n := len(e.podsOf("deleted")); n > 0 {
			return fmt.Errorf("%d pods are", n)
		}
		return nil
	})

	//   5. Without the option a job that waits has no pods.
	stop()
	e.run()
	e.apply(jobYAML("without", 20, "minAvailable: 20", ""))
	e.waits("without")
	if n := len(e.podsOf("without")); n > 0 {
		t.Errorf("without the option a job that waits has %d pods", n)
	}
}

// TestPodsOfWaitingJobsAreWrittenOnce counts the writes for a gang that waits and then starts, and
// for one that starts at once.
func TestPodsOfWaitingJobsAreWrittenOnce(t *testing.T) {
	e := startUnmanaged(t)
	e.run(func(c *manager.Config) { c.PodsOfWaitingJobs = 1 }) // the first job of a queue has pods in any case
	e.apply(jobYAML("fits", 4, "minAvailable: 4", ""))
	e.runs("fits", 4)
	writes := func(pods string) (create, status, bind int) {
		for _, call := range localtest.ManagerCalls(t, e.c) {
			if call.Namespace != e.ns || call.Code >= 300 || !strings.HasPrefix(call.Name, pods) {
				continue
			}
			switch call.Resource + " " + call.Verb {
			case "pods create":
				create++
			case "pods/status update", "pods/status patch":
				status++
			case "pods/binding create":
				bind++
			}
		}
		return create, status, bind
	}
	if create, status, bind := writes("fits-"); create != 4 || status+bind != 0 {
		t.Errorf("pods of a gang that fits at once: %d creates, %d statuses, %d bindings", create, status, bind)
	}
	e.apply(jobYAML("waits", 6, "minAvailable: 6", ""))
	e.pending("waits", 6)
	e.apply(jobYAML("second", 6, "minAvailable: 6", ""))
	e.waits("second")
	e.command(bus.AbortJobAction, "Job", "fits")
	e.runs("waits", 6)
	if create, status, bind := writes("waits-"); create != 6 || status != 6 || bind != 6 {
		t.Errorf("6 pods that waited: %d creates, %d statuses, %d bindings", create, status, bind)
	}
	e.pending("second", 6) // it is the first now
	for _, call := range localtest.ManagerCalls(t, e.c) {
		if call.Namespace == e.ns && call.Resource == "pods/binding" && strings.HasPrefix(call.Name, "second-") {
			t.Errorf("a pod of the second job was bound: %+v", call)
		}
	}
}

// TestEvictedJobsHavePendingPods checks that the pods of a gang that was evicted whole exist while it waits
// again.
func TestEvictedJobsHavePendingPods(t *testing.T) {
	e := startUnmanaged(t)
	e.run(func(c *manager.Config) { c.PodsOfWaitingJobs = 100 })
	high := e.ns + "-high"
	e.apply(fmt.Sprintf("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: 1000", high))
	t.Cleanup(func() {
		_ = e.core.SchedulingV1().PriorityClasses().Delete(context.Background(), high, metav1.DeleteOptions{})
	})
	e.apply(jobYAML("low", 8, "minAvailable: 8", ""))
	e.runs("low", 8)
	e.apply(jobYAML("high", 4, "minAvailable: 4\n  priorityClassName: "+high, ""))
	e.runs("high", 4)
	e.pending("low", 8)
}
