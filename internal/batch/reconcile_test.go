package batch

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// TestACommandWaitsForAConflict checks that a Command that arrives while the job's status waits for
// the version with which it conflicted is carried out after that, and not forgotten.
func TestACommandWaitsForAConflict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, []int32{2}, 2)
		w.settle()
		w.conflict = true
		w.all(corev1.PodRunning)
		w.settle()
		if w.record().conflicted == "" {
			t.Fatal("no status met a conflict")
		}
		var ended []bool
		command := &bus.Command{ObjectMeta: metav1.ObjectMeta{UID: "command"}, Action: bus.AbortJobAction}
		w.c.takeOrder(w.record(), &pendingCommand{command: command, job: w.job.UID, ended: func(done bool) { ended = append(ended, done) }})
		w.settle()
		if len(ended) != 0 || len(w.Server) != 2 {
			t.Fatalf("before the status can be written, the Command has ended %v and %d pods are left", ended, len(w.Server))
		}
		w.conflict = false
		w.store(*w.job, func(*api.Job) {})
		w.settle()
		if w.job.Status.State.Phase != api.Aborted || w.job.Status.LastCommand != "command" || len(w.Server) != 0 ||
			!slices.Equal(ended, []bool{true}) {
			t.Errorf("the job is %s after the Command %q with %d pods; the Command has ended %v",
				w.job.Status.State.Phase, w.job.Status.LastCommand, len(w.Server), ended)
		}
	})
}

// TestTheNextRunBeginsWhenItsStatusCanBeWritten checks that a restarted job has no pods as long as
// the server has the phase Restarting and takes no other.
func TestTheNextRunBeginsWhenItsStatusCanBeWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, []int32{2}, 2)
		w.settle()
		w.all(corev1.PodRunning)
		w.settle()
		restart := &bus.Command{ObjectMeta: metav1.ObjectMeta{UID: "command"}, Action: bus.RestartJobAction}
		w.c.takeOrder(w.record(), &pendingCommand{command: restart, job: w.job.UID, ended: func(bool) {}})
		w.turn()
		if w.phase() != api.Restarting {
			t.Fatalf("the job is %s", w.phase())
		}
		w.record().statusConflict(w.record().lastStatus.Load())
		w.record().conflicted = w.job.ResourceVersion
		for range 200 {
			w.turn()
			for name, p := range w.Server {
				if p.DeletionTimestamp != nil {
					w.Remove(name)
				}
			}
			if !w.Step() && len(w.Server) == 0 {
				w.clock.Step(time.Second)
			}
		}
		for name, n := range w.Written {
			if n != 1 {
				t.Errorf("pod %s was created %d times", name, n)
			}
		}
		w.store(*w.job, func(*api.Job) {})
		w.settle()
		if w.phase() != api.Pending || len(w.Server) != 2 {
			t.Errorf("the job is %s with %d pods", w.phase(), len(w.Server))
		}
	})
}
