package controller

import (
	"context"
	"sync"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
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
	changed chan struct{}

	mu sync.Mutex
	// round counts the redistributions of keys.
	round int
	// pending is true until the versions of this round have arrived.
	pending bool
	// versions are the resource versions of the unfinished workflows. They stay until the next
	// round: the watch may be behind for any length of time.
	versions informer.Versions
}

func (t *takeover) init() { t.changed = make(chan struct{}, 1) }

// changing notes that workflows of other managers are about to become this manager's.
func (t *takeover) changing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.pending = true
	select {
	case t.changed <- struct{}{}:
	default:
	}
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

// run requests the versions from the server each time keys are redistributed, until ctx is done.
func (t *takeover) run(ctx context.Context, c *Controller) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.changed:
		}
		t.mu.Lock()
		round := t.round
		t.mu.Unlock()
		for !t.learn(ctx, c, round) {
			select {
			case <-ctx.Done():
				return
			case <-c.Clock.After(versionsRetry):
			}
		}
	}
}

// learn requests the versions once. It reports whether the request succeeded; a newer round may
// have begun meanwhile.
func (t *takeover) learn(ctx context.Context, c *Controller, round int) bool {
	versions, err := c.Informers.Workflows.Versions(ctx, unfinished)
	if err != nil {
		if ctx.Err() == nil {
			c.Log.Warn("asking for the versions of workflows failed", "error", err)
		}
		return false
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
	return true // if a newer round has begun, run serves it next
}
