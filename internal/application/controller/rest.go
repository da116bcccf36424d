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

// rest lets go of what has been worked out for an application about which there has been nothing to do and nothing to wait
// for. It is brought back by whatever concerns it, as it is when a manager starts: from its tracker. It ends a pass.
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
		c.queue.AddAfter(a.key, c.cfg.Rest-now.Sub(a.idle)) // the queue keeps one time for a key, and that was an earlier one
	}
}

// rested says whether what the cluster has is all that there is to know about an application.
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

// leftToOthers are objects that no watch of the application's own shows.
func leftToOthers(r plan.Resource) bool { return r.ReadOnly }

// woken takes up what is kept of an application at rest. The caller holds mu.
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
