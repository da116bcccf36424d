package controller

import (
	"sync"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
)

// takeover delays loading workflows of another manager until this manager's watch has caught up
// with what that manager wrote. If an older version were loaded, steps would run again, because
// their pods may have been collected since.
//
//	Changing ──▶ pending ──the server's versions──▶ known: a workflow is loaded when the watch
//	   ▲            │ nothing is loaded                │     shows its version
//	   └────────────┴──────────────────────────────────┘ the keys are divided again
type takeover struct {
	// requests is the loop that requests the versions from the server; it has one key.
	requests *controlloop.Loop[struct{}, struct{}]

	mu sync.Mutex
	// round counts the redistributions of keys.
	round int
	// pending is true until the versions of this round have arrived.
	pending bool
	// versions are the resource versions of the unfinished workflows. They stay until the next
	// round: the watch may be behind for any length of time.
	versions informer.Versions
}

func (t *takeover) init(c *Controller) {
	t.requests = controlloop.New[struct{}, struct{}](controlloop.Config[struct{}]{
		Name: "workflow-versions", Workers: 1, Turn: func(struct{}) { t.learn(c) }, RetryMin: versionsRetry, RetryMax: versionsRetry,
		Clock: c.Clock,
	})
}

// changing notes that workflows of other managers are about to become this manager's.
func (t *takeover) changing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.pending = true
	t.requests.Wake(struct{}{})
}

// settled reports whether the workflow in the watch cache is recent enough to be loaded.
func (t *takeover) settled(w *wf.Workflow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending {
		return false
	}
	if !informer.Older(w.ResourceVersion, t.versions.At) || w.Labels[wf.LabelCompleted] == "true" {
		// The version was written after the list was taken, or the workflow has finished and so is
		// not in the list.
		return true
	}
	version, found := t.versions.Of[w.UID]
	// A workflow that is missing from the list is over or deleted, which the watch will show.
	return found && !informer.Older(w.ResourceVersion, version)
}

// unfinished is the label selector of the workflows whose versions are requested.
const unfinished = wf.LabelCompleted + "!=true"

// versionsRetry is the delay before a failed request for versions is repeated.
const versionsRetry = time.Second

// learn requests the versions. They are dropped if keys have been redistributed again meanwhile; the
// next turn follows.
func (t *takeover) learn(c *Controller) {
	t.mu.Lock()
	round := t.round
	t.mu.Unlock()
	versions, err := c.Informers.Workflows.Versions(t.requests.Context(), unfinished)
	if err != nil {
		if t.requests.Context().Err() == nil {
			c.Log.Warn("asking for the versions of workflows failed", "error", err)
		}
		t.requests.Retry(struct{}{})
		return
	}
	t.mu.Lock()
	last := t.round == round
	if last {
		t.pending, t.versions = false, versions
	}
	t.mu.Unlock()
	if last {
		c.Rebalance()
	}
}
