package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// jobIn submits a gang of n pods of one CPU, whose key is KIND/NAMESPACE/NAME, to a queue.
func (w *world) jobIn(queue, key string, n int) {
	g := w.gang(key, n, "1")
	g.Queue = queue
	for i := range g.Demands[0].Units {
		g.Demands[0].Units[i].Namespace = strings.Split(key, "/")[1]
	}
	w.Submit(g)
	w.clock.Step(time.Second)
}

// runs returns the keys of the gangs that have pods, in order.
func (w *world) runs() string {
	var keys []string
	for key := range w.on {
		keys = append(keys, key)
	}
	w.said = keys
	return w.heard()
}

func byNamespace(name string) *schedulingv1beta1.Queue {
	q := queue(name, nil)
	q.Annotations = map[string]string{schedulingv1beta1.FairShareByAnnotation: schedulingv1beta1.ByNamespace}
	return q
}

// TestNamespacesOfAQueueTakeTurns has a queue whose share is divided among namespaces, until its annotation is
// removed, and again when it comes back.
func TestNamespacesOfAQueueTakeTurns(t *testing.T) {
	w := newWorld(t, byNamespace("q"))
	w.writes = true
	w.node("n1", "6")
	w.jobIn("default", "job/x/before", 6)
	w.run()
	for _, namespace := range []string{"a", "b", "c"} {
		for i := range 6 {
			w.jobIn("q", fmt.Sprintf("job/%s/%d", namespace, i), 1)
		}
	}
	w.run()
	expect(t, w.runs(), "job/x/before")
	w.finish("job/x/before")
	w.run()
	expect(t, w.runs(), "job/a/0, job/a/1, job/b/0, job/b/1, job/c/0, job/c/1")
	w.finish("job/a/0")
	w.finish("job/b/0")
	w.run()
	expect(t, w.runs(), "job/a/1, job/a/2, job/b/1, job/b/2, job/c/0, job/c/1")
	//   1. Without the annotation the oldest is next.
	w.cluster.UpsertQueue(queue("q", nil))
	w.finish("job/b/1")
	w.finish("job/c/0")
	w.run()
	expect(t, w.runs(), "job/a/1, job/a/2, job/a/3, job/a/4, job/b/2, job/c/1")
	//   2. With it, whoever holds least. Nobody is while the queue is closed.
	closed := byNamespace("q")
	closed.Status.State = schedulingv1beta1.QueueClosed
	w.cluster.UpsertQueue(closed)
	w.finish("job/a/1")
	w.finish("job/a/2")
	w.run()
	expect(t, w.runs(), "job/a/3, job/a/4, job/b/2, job/c/1")
	w.cluster.UpsertQueue(byNamespace("q"))
	w.run()
	expect(t, w.runs(), "job/a/3, job/a/4, job/b/2, job/b/3, job/c/1, job/c/2")
	for name := range w.queues {
		if q := w.ledger.Blocked(name); q != nil && name != "root" {
			t.Errorf("%s is blocked: %s", name, q.Stable())
		}
	}
}

// TestUsersOfAQueueTakeTurns has a user with two namespaces, one with one, and a namespace of nobody's.
func TestUsersOfAQueueTakeTurns(t *testing.T) {
	byUser := queue("q", nil)
	byUser.Annotations = map[string]string{schedulingv1beta1.FairShareByAnnotation: schedulingv1beta1.ByUser}
	w := newWorld(t, byUser)
	w.writes = true
	w.cluster.SetUser("a1", "ann")
	w.cluster.SetUser("a2", "ann")
	w.cluster.SetUser("b", "bob")
	w.node("n1", "6")
	w.jobIn("default", "job/x/before", 6)
	w.run()
	for _, namespace := range []string{"a1", "a2", "b", "ann"} { // the last is called like a user
		for i := range 6 {
			w.jobIn("q", fmt.Sprintf("job/%s/%d", namespace, i), 1)
		}
	}
	w.run()
	w.finish("job/x/before")
	w.run()
	expect(t, w.runs(), "job/a1/0, job/a1/1, job/ann/0, job/ann/1, job/b/0, job/b/1")
	// A namespace gets another user: what it holds, and what waits in it, is his.
	w.cluster.SetUser("b", "ann")
	w.finish("job/a1/0")
	w.run()
	expect(t, w.runs(), "job/a1/1, job/ann/0, job/ann/1, job/ann/2, job/b/0, job/b/1")
	if users := w.cluster.Queues()[1].Users; len(users) != 2 || users["ann"][0] != 3000 || users["namespace/ann"][0] != 3000 {
		t.Errorf("users hold %v", users)
	}
}

// TestOnlySoManyJobsOfAQueueRun checks that jobs wait whose queue, or one above it, runs as many as it may, and
// that PodGroups do not count.
func TestOnlySoManyJobsOfAQueueRun(t *testing.T) {
	limited := func(name string, jobs string) *schedulingv1beta1.Queue {
		return queue(name, corev1.ResourceList{schedulingv1beta1.JobsResource: resource.MustParse(jobs)})
	}
	below := limited("below", "1")
	below.Spec.Parent = "above"
	beside := byNamespace("beside")
	beside.Spec.Parent = "above"
	w := newWorld(t, limited("above", "2"), below, beside, limited("half", "500m"))
	w.writes = true
	w.node("n1", "64")
	w.jobIn("below", "job/ns/a", 2)
	w.jobIn("below", "job/ns/b", 2)
	w.jobIn("below", "podgroup/ns/g", 1)
	w.jobIn("half", "job/ns/half", 1) // not a number: no limit
	w.run()
	expect(t, w.heard(), "job/ns/a+2, job/ns/b: QueueOverJobs, job/ns/half+1, podgroup/ns/g+1")
	w.jobIn("beside", "job/ns/c", 1)
	w.jobIn("beside", "job/ns/d", 1)
	w.run()
	expect(t, w.heard(), "job/ns/c+1, job/ns/d: QueueOverJobs")
	w.finish("job/ns/a")
	w.run()
	if heard := w.heard(); heard != "job/ns/b+2" && heard != "job/ns/d+1" {
		t.Errorf("after the end of a: %s", heard)
	}
	w.finish("job/ns/c")
	w.run()
	if runs := w.runs(); runs != "job/ns/b, job/ns/d, job/ns/half, podgroup/ns/g" {
		t.Errorf("in the end %s run", runs)
	}
}

// TestATeamThatHasUsedTheClusterIsBehind lets a team use the whole cluster for a day. Another manager, which reads
// what the first one has written into the status of the queues, decides likewise.
func TestATeamThatHasUsedTheClusterIsBehind(t *testing.T) {
	day := Config{UsageHalfLife: 24 * time.Hour}
	start := func(busy, idle *schedulingv1beta1.Queue) *world {
		w := worldOf(t, day, busy, idle)
		w.writes = true
		w.node("n1", "8")
		return w
	}
	w := start(byNamespace("busy"), queue("idle", nil))
	w.jobIn("busy", "job/a/day", 6)
	w.jobIn("busy", "job/b/day", 2)
	w.run()
	w.clock.Step(24 * time.Hour)
	w.run()
	used := w.Usage()["busy"]
	cpus := func(of corev1.ResourceList) string { return fmt.Sprintf("%.1f", of.Cpu().AsApproximateFloat64()) }
	if cpus(used.Average) != "4.0" || cpus(used.Users["a"]) != "3.0" || cpus(used.Users["b"]) != "1.0" || used.Changes == 0 {
		t.Fatalf("used: %+v", used)
	}
	decide := func(w *world, key string) string {
		w.heard()
		w.jobIn("default", "job/x/"+key, 8)
		w.run()
		for i := range 8 {
			w.jobIn("busy", fmt.Sprintf("job/a/%s%d", key, i), 1)
			w.jobIn("busy", fmt.Sprintf("job/b/%s%d", key, i), 1)
		}
		for i := range 8 {
			w.jobIn("idle", fmt.Sprintf("job/c/%s%d", key, i), 1)
		}
		w.run()
		w.finish("job/x/" + key)
		w.run()
		n := map[byte]int{}
		for key := range w.on {
			n[key[len("job/")]]++
		}
		return fmt.Sprint(n['a'], n['b'], n['c'])
	}
	w.finish("job/a/day")
	w.finish("job/b/day")
	w.run()
	// The idle team gets 4 places before the busy one, with 4 CPUs used on average, gets the first; then both
	// get the same number, and in the busy team the namespace that has used less.
	const want = "0 2 6"
	expect(t, decide(w, "first"), want)

	busy := byNamespace("busy")
	busy.Status.Usage = &used.QueueUsage
	busy.Status.Usage.At.Time = time.Unix(1000, 0) // the time of a world's beginning
	again := start(busy, queue("idle", nil))
	again.run()
	expect(t, decide(again, "again"), want)
	// Without the setting, all have the same number.
	day.UsageHalfLife = 0
	expect(t, decide(start(busy, queue("idle", nil)), "without"), "2 2 4")
}
