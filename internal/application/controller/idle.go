package controller

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/report"
)

// maybeIdle frees the in-memory state of an Application for which there has been nothing to do or
// to wait for during Config.IdleAfter. Any event that concerns the Application loads its state from
// the tracker, as at the manager's start. maybeIdle is the last step of a turn.
func (c *reconciler) maybeIdle(a *record, o *oam.Application, p *deploy.Progress) {
	if !c.mayIdle(a, o, p) {
		a.idle = time.Time{}
		return
	}
	now := c.now()
	switch {
	case a.idle.IsZero():
		a.idle = now
		a.WakeAfter(c.cfg.IdleAfter)
	case now.Sub(a.idle) >= c.cfg.IdleAfter:
		for i := range a.Plan.Resources {
			if t := c.targets.Get(a.Plan.Resources[i].Cluster); t != nil {
				t.Objects.Pack(a.Plan.Resources[i].Ref)
			}
		}
		c.idle.add(a.Key, slices.Collect(maps.Keys(a.UIDs)))
		c.loop.Drop(a.Key)
	default:
		a.WakeAfter(c.cfg.IdleAfter - now.Sub(a.idle)) // the queue kept an earlier time
	}
}

// mayIdle reports whether an Application's state can be read completely from the cluster and
// nothing is under way.
func (c *reconciler) mayIdle(a *record, o *oam.Application, p *deploy.Progress) bool {
	if a.Plan == nil || a.PlanErr != nil || a.Plan.Waiting() || !p.Finished || p.Applied != len(a.Plan.Resources) || len(p.Problems) > 0 || a.Tracker.Dirty || a.planning.again ||
		a.run != nil || a.restarted != "" || len(a.planning.read) > 0 || slices.ContainsFunc(a.Plan.Resources, leftToOthers) || a.Follows || a.planning.places || a.Tracker.Object == nil {
		return false
	}
	if c.keeper.Unsettled(a.Owner, &a.Tracker) {
		return false
	}
	rt, ok := c.trackers.Get("", a.Tracker.Object.Name)
	if !ok || rt.ResourceVersion != a.Tracker.Object.ResourceVersion || a.report.Status != nil && !report.Same(&o.Status, a.report.Status) {
		return false
	}
	version, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return false
	}
	return !a.Writes.Any() && len(a.Writes.Failed) == 0 && len(a.Accepted) == 0 && !slices.ContainsFunc(a.Plan.Resources, elsewhere) &&
		!slices.ContainsFunc(a.Tracker.Resources, func(m oam.ManagedResource) bool { return m.Cluster != "" }) &&
		a.report.Writes == 0 && version >= a.report.Version && a.released == ""
}

// elsewhere reports whether a resource is in a managed cluster.
func elsewhere(r plan.Resource) bool { return r.Cluster != "" }

// leftToOthers reports whether a resource is read-only, so that the Application's own watches do
// not show it.
func leftToOthers(r plan.Resource) bool { return r.ReadOnly }

// idleApplications holds the UIDs of the objects of each idle Application. The zero value is empty.
type idleApplications struct {
	mu   sync.Mutex
	uids map[types.NamespacedName][]types.UID
}

func (x *idleApplications) add(k types.NamespacedName, uids []types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.uids == nil {
		x.uids = map[types.NamespacedName][]types.UID{}
	}
	x.uids[k] = uids
}

// wake removes and returns the UIDs of an idle Application's objects, or nil if there are none.
func (x *idleApplications) wake(k types.NamespacedName) map[types.UID]bool {
	x.mu.Lock()
	known, found := x.uids[k]
	delete(x.uids, k)
	x.mu.Unlock()
	if !found {
		return nil
	}
	out := make(map[types.UID]bool, len(known))
	for _, uid := range known {
		out[uid] = true
	}
	return out
}
