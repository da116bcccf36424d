package batch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler"
)

// evictAll evicts the pods of the world's job that have not ended.
func (w *world) evictAll() {
	x := scheduler.Eviction{Gang: gangKey(jobKey), Whole: true, For: "job/ns/urgent", Why: "has lower priority"}
	for name, p := range w.Server {
		if p.Status.Phase == corev1.PodRunning {
			x.Pods = append(x.Pods, scheduler.PodRef{Name: types.NamespacedName{Namespace: jobKey.Namespace, Name: name}, UID: p.UID})
		}
	}
	w.c.Evict(x)
}

// steps makes many steps, in which leaving pods go.
func (w *world) steps() {
	w.Calm = true
	for range 200 {
		w.turn()
		w.Step()
		for name, p := range w.Server {
			if p.DeletionTimestamp != nil {
				w.Remove(name)
			}
		}
	}
}

// TestAnEvictedJobComesBackWhole checks that a job that has lost all pods that had not ended gets
// nodes for all of them at once, and that no retry is counted.
func TestAnEvictedJobComesBackWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, []int32{4}, 4)
		retries := int32(1)
		w.job.Spec.MaxRetry = &retries
		restarts := rapid.Bool().Draw(t, "a policy restarts the job")
		if restarts {
			w.job.Spec.Policies = []api.LifecyclePolicy{{Event: bus.PodEvictedEvent, Action: bus.RestartJobAction}}
		}
		w.settle()
		w.all(corev1.PodRunning)
		w.settle()
		ended := 0
		if rapid.Bool().Draw(t, "a pod has succeeded") {
			ended = 1
			w.Change("job-a-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			w.settle()
		}
		alive := 4 - ended
		w.evictAll()
		if restarts {
			ended = 0
		}
		w.Room = alive - 1 + ended // the pod that has succeeded counts as one, too
		w.steps()
		if n := len(w.Server); n != ended {
			t.Fatalf("%d pods exist, with room for too few", n)
		}
		w.Room = 10
		w.steps()
		w.all(corev1.PodRunning)
		w.settle()
		if s := w.job.Status; len(w.Server) != 4 || s.RetryCount != 0 || s.State.Phase != api.Running {
			t.Errorf("%d pods; status %+v", len(w.Server), s)
		}
	})
}

// TestDescribe checks what the scheduler is told about a job before it evicts its pods.
func TestDescribe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, []int32{3, 2}, 4)
		w.settle()
		w.all(corev1.PodRunning)
		w.settle()
		w.Change("job-a-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		w.settle()
		got, ok := w.c.Describe(gangKey(jobKey))
		if !ok || got.MinMember != 3 || len(got.Min) != 0 {
			t.Errorf("%+v, %v; the job's minimum is below the sum of its tasks'", got, ok)
		}
		if _, ok := w.c.Describe("job/ns/other"); ok {
			t.Error("a job that does not exist may be evicted")
		}
	})
}
