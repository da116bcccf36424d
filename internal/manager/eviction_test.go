package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/manager"
)

// The cluster of these tests has 4 nodes of 8 CPUs. Pods with the finalizer example.com/grace stand
// for pods with long grace periods: once deleted, they stay until letGo.

const priorityClasses = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: patient}
value: 1000
preemptionPolicy: Never`

// jobYAML returns a job of pods of 4 CPUs. more is added to its spec, and metadata to its template's
// metadata.
func jobYAML(name string, pods int, more, metadata string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  %s
  tasks:
  - name: main
    replicas: %d
    template:
      metadata: {%s}
      spec:
        restartPolicy: Never
        containers:
        - {name: main, image: busybox, resources: {requests: {cpu: "4"}}}`, name, more, pods, metadata)
}

const grace = `finalizers: [example.com/grace]`

// letGo ends the grace periods of all pods that are being deleted.
func (e *env) letGo() {
	e.Helper()
	for _, p := range e.pods() {
		if p.DeletionTimestamp == nil || len(p.Finalizers) == 0 {
			continue
		}
		_, err := e.core.CoreV1().Pods(e.ns).Patch(context.Background(), p.Name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			e.Fatal(err)
		}
	}
}

// letAllGo removes the finalizers of all pods, so that the test can end.
func (e *env) letAllGo() {
	list, err := e.core.CoreV1().Pods(e.ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		e.Error(err)
		return
	}
	for _, p := range list.Items {
		if len(p.Finalizers) > 0 {
			_, _ = e.core.CoreV1().Pods(e.ns).Patch(context.Background(), p.Name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
	}
}

// leaving returns the names of the pods that are being deleted.
func (e *env) leaving() []string {
	e.Helper()
	var names []string
	for _, p := range e.pods() {
		if p.DeletionTimestamp != nil {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// uids returns the UIDs of a job's pods that are not being deleted.
func (e *env) uids(job string) map[types.UID]bool {
	e.Helper()
	out := map[types.UID]bool{}
	for _, p := range e.podsOf(job) {
		out[p.UID] = true
	}
	return out
}

// runs waits until a job has n running pods.
func (e *env) runs(job string, n int32) *batch.Job {
	e.Helper()
	return e.until(job, func(j *batch.Job) error {
		if j.Status.Running != n {
			return fmt.Errorf("%d pods run, want %d", j.Status.Running, n)
		}
		return nil
	})
}

// waits waits until the job says that it waits, with these parts of the message.
func (e *env) waits(job string, parts ...string) {
	e.Helper()
	e.until(job, func(j *batch.Job) error {
		c := j.Status.Condition(batch.JobScheduled)
		if c == nil {
			return fmt.Errorf("it does not say that it waits")
		}
		for _, part := range parts {
			if !strings.Contains(c.Message, part) {
				return fmt.Errorf("the message lacks %q", part)
			}
		}
		return nil
	})
}

func (e *env) deleteJob(name string) {
	e.Helper()
	background := metav1.DeletePropagationBackground
	err := e.dyn.Resource(jobs).Namespace(e.ns).Delete(e.Context(), name, metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil {
		e.Fatal(err)
	}
	// The garbage collector of a cluster that has just started does not know jobs.
	for _, p := range e.podsOf(name) {
		if err := e.core.CoreV1().Pods(e.ns).Delete(e.Context(), p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			e.Fatal(err)
		}
	}
}

// startEvicting returns a namespace whose manager evicts, and a function that replaces the manager.
func startEvicting(t *testing.T) (e *env, restart func(between func())) {
	e = startUnmanaged(t)
	t.Cleanup(e.letAllGo)
	e.apply(priorityClasses)
	stop := e.run()
	return e, func(between func()) {
		stop()
		between()
		stop = e.run()
	}
}

// TestWeightsTakeBackPlaces has a queue with a weight of 1 fill the cluster before one with a weight of 3
// wants a part of it, with and without the setting that has weights evict.
func TestWeightsTakeBackPlaces(t *testing.T) {
	e := startUnmanaged(t)
	stop := e.run()
	first, second := e.ns+"-first", e.ns+"-second"
	for name, weight := range map[string]int{first: 1, second: 3} {
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: {weight: %d}", name, weight))
	}
	t.Cleanup(func() {
		for _, name := range []string{first, second} {
			_ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	e.apply(jobYAML("low", 8, "queue: "+first+"\n  minAvailable: 1", ""))
	e.runs("low", 8)
	e.apply(jobYAML("late", 8, "queue: "+second+"\n  minAvailable: 4", ""))
	e.waits("late", "cpu")
	if c := e.job("late").Status.Condition(batch.JobScheduled); c == nil || strings.Contains(c.Message, "evicted") {
		t.Errorf("without the setting it says %s", asJSON(c))
	}
	stop()
	e.run(func(c *manager.Config) { c.ReclaimByWeight = true })
	e.runs("late", 4) // what is above its minimum takes nothing from others
	e.runs("low", 4)
	e.apply(jobYAML("more", 3, "queue: "+second, ""))
	e.waits("more", "nothing is evicted for it")
	e.apply(jobYAML("last", 2, "queue: "+second, ""))
	e.runs("last", 2)
	e.runs("low", 2)
}

func TestAnUrgentJobTakesThePlaceOfAnother(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("low", 8, "maxRetry: 1", grace)) // a single retry would fail the job
	e.runs("low", 8)
	e.apply(jobYAML("high", 2, "priorityClassName: urgent", ""))
	e.waits("high", "waits until evicted pods have left", "job/"+e.ns+"/low (the whole gang, 8 pods; it has lower priority)")
	e.eventually("the victims are leaving", func() error {
		if n := len(e.leaving()); n != 8 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	e.letGo()
	e.runs("high", 2)
	// The victim waits for its whole gang, and evicts nobody.
	e.waits("low", "cpu")
	if n := len(e.podsOf("low")); n != 0 {
		t.Errorf("the victim has %d pods, less than its minimum", n)
	}
	e.deleteJob("high")
	j := e.runs("low", 8)
	if j.Status.RetryCount != 0 || j.Status.State.Phase != batch.Running {
		t.Errorf("status of the victim: %s", asJSON(j.Status))
	}
	e.deleteJob("low")
	e.eventually("the pods are leaving", func() error { e.letGo(); return e.none() })
}

// none returns an error while there are pods.
func (e *env) none() error {
	if n := len(e.pods()); n > 0 {
		return fmt.Errorf("%d pods", n)
	}
	return nil
}

func TestARestartPolicyUsesNoRetryForAnEviction(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("low", 8, "maxRetry: 1\n  policies: [{event: PodEvicted, action: RestartJob}]", ""))
	e.runs("low", 8)
	e.apply(jobYAML("high", 2, "priorityClassName: urgent", ""))
	e.runs("high", 2)
	e.deleteJob("high")
	j := e.runs("low", 8)
	if j.Status.RetryCount != 0 || j.Status.Version != 1 {
		t.Errorf("status of the victim: %s", asJSON(j.Status))
	}
}

func TestPodsAboveTheMinimumGoFirst(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("whole", 4, "", ""))
	e.runs("whole", 4)
	e.apply(jobYAML("elastic", 4, "minAvailable: 1", ""))
	e.runs("elastic", 4)
	whole := e.uids("whole")
	e.apply(jobYAML("high", 3, "priorityClassName: urgent", ""))
	e.runs("high", 3)
	e.runs("elastic", 1)
	if after := e.uids("whole"); fmt.Sprint(after) != fmt.Sprint(whole) {
		t.Errorf("pods of the whole gang were replaced: %v, %v", whole, after)
	}
}

func TestNobodyIsEvictedAgainstTheManifests(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("protected", 4, "", `annotations: {volcano.sh/preemptable: "false"}`))
	e.apply(jobYAML("cooling", 4, "", `annotations: {volcano.sh/cooldown-time: 1h}`))
	e.runs("protected", 4)
	e.runs("cooling", 4)
	e.apply(jobYAML("high", 1, "priorityClassName: urgent", ""))
	e.waits("high", "nothing is evicted for it: there are no pods that may be evicted", "4 protected from eviction", "4 within their cool-down time")
	e.deleteJob("cooling")
	e.runs("high", 1)
	e.apply(jobYAML("low", 3, "", ""))
	e.runs("low", 3)
	e.apply(jobYAML("never", 1, "priorityClassName: patient", ""))
	e.waits("never", "preemptionPolicy: Never")
	if n := e.leaving(); len(n) != 0 {
		t.Errorf("leaving: %v", n)
	}
}

func TestQueuesGetBackWhatTheyDeserve(t *testing.T) {
	e, _ := startEvicting(t)
	queue := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: %s", name, spec)
	}
	a, b, c := e.ns+"-a", e.ns+"-b", e.ns+"-c"
	e.apply(queue(a, "{deserved: {cpu: 16}}") + "\n---\n" + queue(b, "{deserved: {cpu: 16}}") + "\n---\n" +
		queue(c, "{deserved: {cpu: 8}, guarantee: {resource: {cpu: 8}}}"))
	t.Cleanup(func() {
		for _, name := range []string{a, b, c} {
			_ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	for i := range 4 {
		e.apply(jobYAML(fmt.Sprint("a", i), 2, "queue: "+a, ""))
		e.runs(fmt.Sprint("a", i), 2)
	}
	// a has 32 CPUs and deserves 16: b gets its 16, and no more.
	e.apply(jobYAML("b0", 2, "queue: "+b, ""))
	e.runs("b0", 2)
	e.apply(jobYAML("b1", 2, "queue: "+b, ""))
	e.runs("b1", 2)
	e.apply(jobYAML("b2", 2, "queue: "+b, ""))
	e.waits("b2", "nothing is evicted for it")
	e.eventually("the statuses of queue a", func() error {
		running := int32(0)
		for i := range 4 {
			running += e.job(fmt.Sprint("a", i)).Status.Running
		}
		if running != 4 {
			return fmt.Errorf("%d pods of the queue run that deserves 4", running)
		}
		return nil
	})
	// The guarantee holds against queues that have no more than they deserve.
	e.apply(jobYAML("c0", 2, "queue: "+c, ""))
	e.runs("c0", 2)
}

func TestADisruptionBudgetIsRespectedIfThereIsAnotherWay(t *testing.T) {
	e, _ := startEvicting(t)
	deployment := func(name string) string {
		return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 4
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      schedulerName: lockstep
      containers:
      - {name: main, image: busybox, resources: {requests: {cpu: "4"}}}`, name)
	}
	e.apply(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: b}
spec: {minAvailable: 4, selector: {matchLabels: {app: covered}}}`)
	t.Cleanup(func() {
		for _, name := range []string{"free", "covered"} {
			_ = e.core.AppsV1().Deployments(e.ns).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	bound := func(app string) (uids []string) {
		for _, p := range e.pods() {
			if p.Labels["app"] == app && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
				uids = append(uids, string(p.UID))
			}
		}
		slices.Sort(uids)
		return uids
	}
	for _, app := range []string{"free", "covered"} { // the covered pods are the younger ones
		e.apply(deployment(app))
		e.eventually("pods of "+app, func() error {
			if n := len(bound(app)); n != 4 {
				return fmt.Errorf("%d have nodes", n)
			}
			return nil
		})
	}
	before := bound("covered")
	e.apply(jobYAML("high", 2, "priorityClassName: urgent", ""))
	e.runs("high", 2)
	if after := bound("covered"); !slices.Equal(before, after) {
		t.Errorf("covered pods were evicted")
	}
	if n := len(bound("free")); n != 2 {
		t.Errorf("%d of the other pods have nodes, want 2", n)
	}
}

func TestCapacityIsKeptWhileVictimsAreLeaving(t *testing.T) {
	e, restart := startEvicting(t)
	e.apply(jobYAML("low", 7, "", grace))
	e.runs("low", 7)
	e.apply(jobYAML("other", 1, "", ""))
	e.runs("other", 1)
	others := e.uids("other")
	e.apply(jobYAML("high", 7, "priorityClassName: urgent", ""))
	e.eventually("the victims are leaving", func() error {
		if n := len(e.leaving()); n != 7 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	// One victim has left. Small jobs get its place neither now nor after a restart of the manager.
	first := e.leaving()[0]
	_, err := e.core.CoreV1().Pods(e.ns).Patch(t.Context(), first, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.apply(jobYAML("small", 1, "", ""))
	e.waits("small", "cpu")
	restart(func() { e.apply(jobYAML("small2", 1, "", "")) })
	e.waits("small2", "cpu")
	e.waits("high", "pods that are leaving have left")
	if n := len(e.podsOf("small")) + len(e.podsOf("small2")); n != 0 {
		t.Errorf("%d small pods have the place of the victims", n)
	}
	if after := e.uids("other"); fmt.Sprint(after) != fmt.Sprint(others) {
		t.Error("a second set of victims was evicted")
	}
	e.letGo()
	e.runs("high", 7)
	if after := e.uids("other"); fmt.Sprint(after) != fmt.Sprint(others) {
		t.Error("a second set of victims was evicted")
	}
}

func TestKeptCapacityIsReleasedWithTheClaimant(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(jobYAML("low", 8, "", grace))
	e.runs("low", 8)
	e.apply(jobYAML("high", 8, "priorityClassName: urgent", ""))
	e.eventually("the victims are leaving", func() error {
		if n := len(e.leaving()); n != 8 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
	e.apply(jobYAML("small", 1, "", ""))
	first := e.leaving()[0]
	_, err := e.core.CoreV1().Pods(e.ns).Patch(t.Context(), first, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.waits("small", "cpu")
	e.deleteJob("high")
	e.runs("small", 1)
}

// TestEvictionOff checks the manager's flag.
func TestEvictionOff(t *testing.T) {
	e := startUnmanaged(t)
	e.apply(priorityClasses)
	e.run(func(c *manager.Config) { c.Eviction = "dry-run" })
	e.apply(jobYAML("low", 8, "", ""))
	e.runs("low", 8)
	e.apply(jobYAML("high", 2, "priorityClassName: urgent", ""))
	e.waits("high", "these pods would have to leave: job/"+e.ns+"/low")
	if n := e.leaving(); len(n) != 0 {
		t.Errorf("leaving: %v", n)
	}
}
