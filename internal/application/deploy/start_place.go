package deploy

import (
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

const (
	// observeTimeout is how long after the last answer an Application may keep its place until
	// controllers have observed the objects that it created.
	observeTimeout = 2 * time.Second
	// silenceMax is how long a managed cluster may leave writes unanswered before Applications stop
	// keeping their places for it. It is a round trip to the other side of the world, and a short
	// wait for others when the cluster is unreachable.
	silenceMax = 250 * time.Millisecond
)

// KeepsPlace reports whether an Application at the start limiter keeps its place. again is how long
// to wait before asking again if nothing happens earlier; zero means that an answer enqueues the
// Application.
func (d *Deployer) KeepsPlace(a *State) (keeps bool, again time.Duration) {
	now := d.Now()
	local := len(a.Writes.Flight) // writes to the local cluster that are under way
	wait := observeTimeout - now.Sub(a.Writes.Answered)
	for i := range a.Resources() {
		r := &a.Plan.Resources[i]
		if r.Cluster == "" || !a.Writes.InFlight(records.RefKey(r.Ref)) {
			continue
		}
		local--
		if t := d.Targets.Get(r.Cluster); t != nil {
			again = max(again, silenceMax-t.Answers.Silence(now))
		}
	}
	switch {
	case local > 0:
		return true, 0
	case again > 0:
		return true, again
	case wait > 0 && d.unobserved(a):
		return true, wait
	}
	return false, 0
}

// unobserved reports whether the controller of some object that the Application created has not
// observed that object yet. While such controllers lag behind, more objects would only delay them
// further.
func (d *Deployer) unobserved(a *State) bool {
	return slices.ContainsFunc(a.Resources(), func(r plan.Resource) bool {
		there := d.Targets.Seen(r.Ref)
		return there != nil && there.Owner == a.Key && there.Unobserved
	})
}
