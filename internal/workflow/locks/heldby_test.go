package locks

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestLocksInAStatusAreTheWorkflowsOwn checks that only a workflow's own locks are taken from its
// status: a user who can write a workflow can name any holder there.
func TestLocksInAStatusAreTheWorkflowsOwn(t *testing.T) {
	status := &wf.SynchronizationStatus{
		Mutex: &wf.LockStatus{Holding: []wf.LockHolding{
			{Mutex: "a/Mutex/own", Holder: "a/w/node"},
			{Mutex: "a/Mutex/workflow", Holder: "a/w"},
			{Mutex: "lockstep-system/Mutex/shared", Holder: "a/w/node"},
			{Mutex: "b/Mutex/theirs", Holder: "a/w/node"},
			{Mutex: "a/Mutex/other", Holder: "a/x/node"},
			{Mutex: "a/Mutex/elsewhere", Holder: "b/w/node"},
		}},
		Semaphore: &wf.LockStatus{Holding: []wf.LockHolding{
			{Semaphore: "a/ConfigMap/m/k", Holders: []string{"a/w/node", "a/x/node"}},
			{Semaphore: "b/ConfigMap/m/k", Holders: []string{"a/w/node"}},
		}},
	}
	want := map[string][]string{
		"a/Mutex/own": {"a/w/node"}, "a/Mutex/workflow": {"a/w"}, "lockstep-system/Mutex/shared": {"a/w/node"}, "a/ConfigMap/m/k": {"a/w/node"},
	}
	if d := cmp.Diff(want, Holding(HeldBy("a", "w", status))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
