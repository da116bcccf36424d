package controller

import (
	"context"
	"sync"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
)

// takeover sees to it that workflows which another manager had are taken up as it left them, and not as a watch shows them that
// is behind: their pods may have been collected since, and so their steps would run again.
//
//	Changing ──▶ pending ──the server's versions──▶ known: a workflow is taken up when the watch shows its version
//	   ▲            │ nothing is taken up              │
//	   └────────────┴──────────────────────────────────┘ the keys are divided anew
type takeover struct {
	changed chan struct{}

	mu      sync.Mutex
	round   int  // how often the keys were divided anew
	pending bool // the versions of this round have not come
	// versions are those of workflows that were not over. What the last round left stays until the next: the watch may be behind
	// for any time.
	versions cluster.Versions
}

func (t *takeover) init() { t.changed = make(chan struct{}, 1) }

// changing notes that other workflows are about to become this manager's.
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

// settled says that a workflow can be taken up as the watch shows it.
func (t *takeover) settled(w *wf.Workflow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending {
		return false
	}
	if !cluster.Older(w.ResourceVersion, t.versions.At) || w.Labels[wf.LabelCompleted] == "true" {
		return true // written since, or none of those that were asked for
	}
	version, found := t.versions.Of[w.UID]
	return found && !cluster.Older(w.ResourceVersion, version) // one that was not found is over, or gone: the watch will show it
}

// unfinished are the workflows whose versions are asked for.
const unfinished = wf.LabelCompleted + "!=true"

// versionsRetry is how long after a failure the server is asked again.
const versionsRetry = time.Second

// run asks the server for versions when keys are divided anew, until ctx is done.
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

// learn asks once, and says whether that is done with.
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
	return true // else there is a newer round, whose turn is next
}
