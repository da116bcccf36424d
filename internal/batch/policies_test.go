package batch

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
)

// TestAPolicyOnPodsThatWait checks what a policy does to a job whose pods have nodes and do not run
// in time.
func TestAPolicyOnPodsThatWait(t *testing.T) {
	for name, c := range map[string]struct {
		action  bus.Action
		retries int32
		events  []string
	}{
		"restarts one of them, and the others begin to wait anew": {bus.RestartPodAction, 1, []string{"ExecuteAction"}},
		"has nothing to resume":                                   {bus.ResumeJobAction, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, []int32{3}, 3)
				w.settle() // the pods have nodes
				w.job.Spec.MaxRetry = ptr.To[int32](100)
				w.job.Spec.Policies = []api.LifecyclePolicy{
					{Event: bus.PodPendingEvent, Action: c.action, Timeout: &metav1.Duration{Duration: time.Hour}},
				}
				for name := range w.Server {
					w.Change(name, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(w.clock.Now()) })
				}
				w.begin()
				w.clock.Step(2 * time.Hour)
				for range 10 {
					w.turn()
				}
				if got := w.record().status.RetryCount; got != c.retries || !slices.Equal(w.events, c.events) {
					t.Errorf("%d restarts with the events %q, want %d with %q", got, w.events, c.retries, c.events)
				}
			})
		})
	}
}
