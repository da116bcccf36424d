package controller

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/keyed"
)

// reconcile compares the desired with the live state of one Application, and starts the writes that
// are due.
func (c *Controller) reconcile(k types.NamespacedName) {
	a, changes := c.recordOf(k), c.changes.Load()
	c.loop.Deliver(k, keyed.Anyone)
	if c.proceed(a) {
		if keeps, wait := c.keepsPlace(a); !keeps {
			c.through(k)
		} else if wait > 0 {
			c.loop.WakeAfter(k, wait)
		}
	}
	a.declareInterests()
	if in := a.interests.Load(); changes != c.changes.Load() && (in.definitions || in.clusters || in.in != nil) {
		c.loop.Wake(k) // the handlers did not know these interests yet
	}
}

// proceed brings an Application as far as possible. It returns false if the Application waits to
// be let in by the gate.
func (c *Controller) proceed(a *record) bool {
	if loaded, err := c.load(a); err != nil {
		c.noRecord(a, err)
		return true
	} else if !loaded {
		return true
	}
	o, err := c.open(a)
	if err != nil {
		if last := a.tracker.latest(); last != nil {
			o.Spec = *last.Spec // the spec by which it is removed
		}
		a.noPlan(err)
	}
	if o == nil || o.DeletionTimestamp != nil {
		c.remove(a, o)
		return true
	}
	if o.Labels[oam.PauseLabel] == "true" {
		return true
	}
	if err != nil {
		c.reporter.report(a.state, &a.report, o, progress{})
		return true
	}
	if a.tracker.object == nil && !c.gate.enter(a.key) {
		return false
	}
	if c.restart(a, o) {
		c.runAgain(a)
		if a.tracker.object != nil {
			c.writeTracker(a, o.UID, o.Generation)
			return true
		}
	}
	// 1. Make the plan, and find the identity to act as.
	author, err := c.authors.of(o)
	if errors.Is(err, ErrNotKnown) {
		return true // Rebalance is called when it is known
	}
	if err != nil {
		a.noPlan(err)
		c.reporter.report(a.state, &a.report, o, progress{})
		return true
	}
	a.actAs(author)
	if !c.replan(a, o) {
		if !errors.Is(a.planErr, plan.ErrNotYet) {
			c.reporter.report(a.state, &a.report, o, progress{})
		}
		return true
	}
	c.hold(a, o)
	var p progress
	for range stepsMax {
		// 2. Name new objects in the tracker before they are created.
		if !c.recordNew(a, o) {
			return true
		}
		// 3. Create and patch objects.
		p = c.deployer.dispatch(a.state, workflowFinished(a.report.current(o), &a.tracker))
		if a.run == nil || !p.planned {
			break
		}
		more, unsaved := c.steps.advance(a.state, a.run, &p, command{o.Annotations[oam.WorkflowCommandAnnotation], func() *oam.WorkflowStatus { return a.theirs(o) }})
		if more {
			a.plan = a.run.merged()
		}
		if unsaved {
			if c.recordNew(a, o) {
				c.writeTracker(a, o.UID, o.Generation)
			}
			return true
		}
		if !more {
			break
		}
	}
	// 4. Delete objects that left the plan, and update the tracker.
	if p.applied+p.blocked == len(a.plan.Resources) && p.settled && a.run.whole() && c.remover.collect(a.state, &o.Spec) {
		c.writeTracker(a, "", a.tracker.object.Spec.ApplicationGeneration)
	}
	// 5. Report the status, unless a component's state is still being evaluated.
	if slices.ContainsFunc(p.components, func(s componentState) bool { return s.unknown }) {
		return true
	}
	c.reporter.report(a.state, &a.report, o, p)
	c.rest(a, o, &p)
	return true
}

// open returns the Application as last seen, or nil if it does not exist. If the spec cannot be
// read, open returns an error and an Application without a spec.
func (c *Controller) open(a *record) (*oam.Application, error) {
	raw, ok := c.applications.Get(a.key.Namespace, a.key.Name)
	if !ok {
		a.opened = nil
		return nil, nil
	}
	if a.opened != nil && a.opened.UID == raw.UID && a.opened.ResourceVersion == raw.ResourceVersion {
		return a.opened, nil
	}
	o, err := c.applications.open(raw)
	if a.opened = o; err != nil {
		a.opened = nil // so that the next pass reports it again
	}
	return o, err
}

const (
	// takenUpMax is how long after the last answer an Application may keep its place at the gate
	// until controllers have observed the objects it created.
	takenUpMax = 2 * time.Second
	// silenceMax is how long a managed cluster may leave writes unanswered before Applications stop
	// keeping their places at the gate for it. It is a round trip to the other side of the world,
	// and a short wait for others when the cluster has gone.
	silenceMax = 250 * time.Millisecond
)

// keepsPlace reports whether an Application keeps its place at the gate. again is when to ask again
// if nothing happens before; zero means an answer will bring the Application back.
func (c *Controller) keepsPlace(a *record) (keeps bool, again time.Duration) {
	if !c.gate.has(a.key) {
		return false, 0
	}
	now := c.now()
	local := len(a.writes.flight) // writes to the local cluster that are under way
	wait := takenUpMax - now.Sub(a.writes.answered)
	for i := range a.resources() {
		r := &a.plan.Resources[i]
		if r.Cluster == "" || !a.writes.inFlight(refKey(r.Ref)) {
			continue
		}
		local--
		if t := c.targets.get(r.Cluster); t != nil {
			again = max(again, silenceMax-t.pulse.silence(now))
		}
	}
	switch {
	case local > 0:
		return true, 0
	case again > 0:
		return true, again
	case wait > 0 && c.untaken(a):
		return true, wait
	}
	return false, 0
}

// untaken reports whether the controller of some object that the Application created has not
// observed that object yet. While such controllers lag behind, more objects would only delay them
// further.
func (c *Controller) untaken(a *record) bool {
	return slices.ContainsFunc(a.resources(), func(r plan.Resource) bool {
		there := c.targets.seen(r.Ref)
		return there != nil && there.owner == a.key && there.untaken
	})
}

// through frees an Application's place at the gate and enqueues the Applications that enter
// instead.
func (c *Controller) through(k types.NamespacedName) {
	for _, next := range c.gate.leave(k, c.cfg.Writer.Lag()) {
		c.loop.Wake(next)
	}
}

// deleted reports whether an Application is being deleted.
func (c *Controller) deleted(k types.NamespacedName) bool {
	raw, ok := c.applications.Get(k.Namespace, k.Name)
	return ok && raw.DeletionTimestamp != nil
}
