package batch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestAJobThatGrowsWaitsLikeOthers checks which gangs come before all others: those that have lost
// pods of their minimum, and not those whose minimum was raised.
func TestAJobThatGrowsWaitsLikeOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, []int32{6}, 2)
		w.Room = 3
		w.steps()
		w.all(corev1.PodRunning)
		w.steps()
		waits := func(what string, resume bool, surplus int) {
			t.Helper()
			g := w.Submitted(gangKey(jobKey))
			if g.Resume != resume || g.Surplus != surplus {
				t.Fatalf("%s: resume is %v, want %v; %d of %d pods are surplus, want %d",
					what, g.Resume, resume, g.Surplus, len(g.Demands[0].Units), surplus)
			}
		}
		restarted := func() {
			if rapid.Bool().Draw(t, "the manager is restarted") {
				w.begin()
				w.steps()
			}
		}
		waits("new", false, 4)
		w.begin()
		w.steps()
		waits("with its minimum", false, 3)

		job := *w.job.DeepCopy()
		job.Generation++
		job.Spec.MinAvailable = 5
		w.store(job, func(*api.Job) {})
		w.steps()
		restarted()
		waits("grown", false, 1)

		w.Room = 2
		w.Remove("job-a-0")
		w.steps()
		restarted()
		waits("after the loss of a pod", true, 1)
	})
}
