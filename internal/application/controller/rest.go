package controller

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// rest frees the in-memory state of an Application for which there has been nothing to do or to
// wait for during Config.Rest. Any event that concerns the Application loads its state from the
// tracker, as at the manager's start. rest is the last step of a pass.
func (c *Controller) rest(a *app, o *oam.Application, p *progress) {
	if !c.rested(a, o, p) {
		a.idle = time.Time{}
		return
	}
	now := c.cfg.Now()
	switch {
	case a.idle.IsZero():
		a.idle = now
		c.queue.AddAfter(a.key, c.cfg.Rest)
	case now.Sub(a.idle) >= c.cfg.Rest:
		for i := range a.plan.Resources {
			if t := c.targets.get(a.plan.Resources[i].Cluster); t != nil {
				t.live.settle(a.plan.Resources[i].Ref)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.apps, a.key)
		a.mu.Lock()
		defer a.mu.Unlock()
		c.resting[a.key] = slices.Collect(maps.Keys(a.uids))
		c.queue.Forget(a.key)
	default:
		c.queue.AddAfter(a.key, c.cfg.Rest-now.Sub(a.idle)) // the queue kept an earlier time
	}
}

// rested reports whether an Application's state can be read from the cluster completely, and
// nothing is under way.
func (c *Controller) rested(a *app, o *oam.Application, p *progress) bool {
	if a.plan == nil || a.planErr != nil || !p.finished || p.applied != len(a.plan.Resources) || len(p.problems) > 0 || a.dirty || a.again ||
		a.course != nil || a.restarted != "" || len(a.read) > 0 || slices.ContainsFunc(a.plan.Resources, leftToOthers) || a.follows.Load() || a.places.Load() || a.record.object == nil {
		return false
	}
	rt, ok := c.trackers.Get("", a.record.object.Name)
	if !ok || rt.ResourceVersion != a.record.object.ResourceVersion || a.status != nil && !same(&o.Status, a.status) {
		return false
	}
	version, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.flight) == 0 && len(a.failed) == 0 && len(a.accepted) == 0 && len(a.retryAt) == 0 && len(a.clusters) == 0 &&
		a.statusWrites == 0 && version >= a.statusVersion && a.answered == nil && a.other == nil && !a.dropped && a.released == ""
}

// leftToOthers reports whether a resource is not shown by the Application's own watches.
func leftToOthers(r plan.Resource) bool { return r.ReadOnly }

// woken returns and deletes the UIDs that are kept of an Application at rest. The caller holds mu.
func (c *Controller) woken(k types.NamespacedName) map[types.UID]bool {
	known := c.resting[k]
	delete(c.resting, k)
	if known == nil {
		return nil
	}
	out := make(map[types.UID]bool, len(known))
	for _, uid := range known {
		out[uid] = true
	}
	return out
}
