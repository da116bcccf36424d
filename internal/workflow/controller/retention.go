package controller

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
)

// retired are the finished workflows beyond the numbers of the retention policy. They are deleted
// as if their time to live were over.
type retired struct {
	mu   sync.Mutex
	uids map[types.UID]bool
}

func (x *retired) has(uid types.UID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.uids[uid]
}

// retire determines the workflows that the retention policy does not keep: all but the latest ends
// of each phase, in all namespaces. Every manager determines the same, and deletes its own.
func (c *Controller) retire() {
	policy := c.Settings().Retention
	gone := map[types.UID]bool{}
	byPhase := map[wf.WorkflowPhase][]*wf.Workflow{}
	if policy.Completed+policy.Failed+policy.Errored > 0 {
		for _, w := range c.Informers.Workflows.List() {
			if policy.Of(w.Status.Phase) > 0 && w.DeletionTimestamp == nil && c.Settings().Selects(w.Labels) {
				byPhase[w.Status.Phase] = append(byPhase[w.Status.Phase], w)
			}
		}
	}
	var keys []types.NamespacedName
	for phase, list := range byPhase {
		slices.SortFunc(list, func(a, b *wf.Workflow) int {
			return cmp.Or(b.Status.FinishedAt.Compare(a.Status.FinishedAt.Time), cmp.Compare(a.UID, b.UID))
		})
		for _, w := range list[min(policy.Of(phase), len(list)):] {
			gone[w.UID] = true
			keys = append(keys, informer.KeyOf(w))
		}
	}
	c.retired.mu.Lock()
	c.retired.uids = gone
	c.retired.mu.Unlock()
	for _, key := range keys {
		c.loop.Wake(key)
	}
}
