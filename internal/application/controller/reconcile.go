package controller

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/author"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/report"
	"lockstep.dev/lockstep/internal/application/steps"
	"lockstep.dev/lockstep/internal/controlloop"
)

// reconciler works on one Application at a time.
type reconciler struct {
	cfg  Config
	log  *slog.Logger
	loop *controlloop.Loop[types.NamespacedName, record]
	// changes counts the changes of definitions and clusters.
	changes atomic.Uint64

	applications *records.PackedCache[oam.Application]
	trackers     *records.PackedCache[oam.ResourceTracker]
	targets      *objects.Targets
	watches      *objects.Watches
	authors      author.Finder
	starts       deploy.StartLimiter
	idle         idleApplications

	keeper   records.Keeper
	planner  deploy.Planner
	deployer deploy.Deployer
	remover  deploy.Remover
	steps    steps.Runner
	reporter report.Reporter
	giver    giver
}

// reconcile compares the desired state of one Application with the live state, and starts the
// writes that are due.
func (c *reconciler) reconcile(a *record) {
	k, changes := a.Key, c.changes.Load()
	c.loop.Deliver(k, controlloop.Anyone)
	if c.proceed(a) {
		keeps, wait := false, time.Duration(0)
		if c.starts.Has(k) {
			keeps, wait = c.deployer.KeepsPlace(a.State)
		}
		if !keeps {
			c.letNextStart(k)
		} else if wait > 0 {
			c.loop.WakeAfter(k, wait)
		}
	}
	a.declareInterests()
	if in := a.interests.Load(); changes != c.changes.Load() && (in.definitions || in.clusters || in.in != nil) {
		c.loop.Wake(k) // the handlers did not know these interests yet
	}
}

// proceed brings an Application as far as possible. It returns false if the Application waits for
// the start limiter.
func (c *reconciler) proceed(a *record) bool {
	if loaded, err := c.load(a); err != nil {
		c.reportUnreadable(a, err)
		return true
	} else if !loaded {
		return true
	}
	o, err := c.open(a)
	if err != nil {
		if last := a.Tracker.Latest(); last != nil {
			o.Spec = *last.Spec // its objects are removed by this spec
		}
		a.noPlan(err)
	}
	if o == nil || o.DeletionTimestamp != nil {
		c.remove(a, o)
		return true
	}
	if o.Labels[oam.PauseLabel] == "true" || o.Annotations[oam.ControllerVersionAnnotation] == oam.ControllerDisabled {
		return true
	}
	if err != nil {
		c.reporter.Report(a.State, &a.report, o, deploy.Progress{})
		return true
	}
	if a.Tracker.Object == nil && !c.starts.Enter(a.Key) {
		return false
	}
	if c.restart(a, o) {
		a.runAgain(c.now())
		if a.Tracker.Object != nil {
			c.keeper.Write(a.Owner, &a.Tracker, &a.Writes, records.Written{UID: o.UID, Generation: o.Generation})
			return true
		}
	}
	// 1. Make the plan, and find the identity to act as.
	as, err := c.authors.Of(o)
	if errors.Is(err, author.ErrNotKnown) {
		return true // Rebalance is called when it is known
	}
	if err != nil {
		a.noPlan(err)
		c.reporter.Report(a.State, &a.report, o, deploy.Progress{})
		return true
	}
	a.ActAs(as)
	if !c.replan(a, o) {
		if !errors.Is(a.PlanErr, plan.ErrNotYet) {
			c.reporter.Report(a.State, &a.report, o, deploy.Progress{})
		}
		return true
	}
	c.addFinalizer(a, o)
	c.giver.give(a, o)
	var p deploy.Progress
	for range steps.StepsMax {
		// 2. Name new objects in the tracker before they are created.
		if !c.nameNewObjects(a, o) {
			return true
		}
		// 3. Create and patch objects.
		p = c.deployer.Dispatch(a.State, report.WorkflowFinished(a.report.Current(o), &a.Tracker))
		if a.run == nil || !p.Planned {
			a.CountErrors(&p, c.now()) // of steps, the workflow does
			break
		}
		more, unsaved := c.steps.Advance(a.State, a.run, &p, steps.Command{Annotation: o.Annotations[oam.WorkflowCommandAnnotation], Theirs: func() *oam.WorkflowStatus { return a.theirs(o) }})
		if more {
			a.Plan = a.run.Merged()
		}
		if unsaved {
			if c.nameNewObjects(a, o) {
				c.keeper.Write(a.Owner, &a.Tracker, &a.Writes, records.Written{UID: o.UID, Generation: o.Generation})
			}
			return true
		}
		if !more {
			break
		}
	}
	// 4. Delete objects that left the plan, update the tracker, and delete the trackers of earlier
	// generations.
	a.Tracker.Dirty = a.Tracker.Dirty || outdated(a, o)
	if p.Applied+p.Blocked == len(a.Plan.Resources) && p.Settled && len(a.Plan.Broken()) == 0 && !a.Plan.Waiting() && a.run.Whole() {
		left := c.remover.Collect(a.State, &o.Spec, c.keeper.Condemned(a.Owner, &a.Tracker))
		if left.Dirty {
			c.keeper.Write(a.Owner, &a.Tracker, &a.Writes, records.Written{UID: o.UID, Generation: o.Generation, Complete: true})
		} else if !left.Pending {
			c.keeper.Settle(a.Owner, &a.Tracker, &a.Writes, left.Kept)
		}
		if len(left.Kept) > 0 && a.Writes.Any() && c.keeper.Unsettled(a.Owner, &a.Tracker) {
			return true // whoever reads in the status that all is done finds the trackers of what is kept
		}
	}
	// 5. Report the status, unless a component's state is still being evaluated.
	if slices.ContainsFunc(p.Components, func(s deploy.ComponentState) bool { return s.Unknown }) {
		return true
	}
	c.reporter.Report(a.State, &a.report, o, p)
	c.maybeIdle(a, o, &p)
	return true
}

// open returns the Application as last seen, or nil if it does not exist. If the spec cannot be
// read, open returns an error and an Application without a spec.
func (c *reconciler) open(a *record) (*oam.Application, error) {
	raw, ok := c.applications.Get(a.Key.Namespace, a.Key.Name)
	if !ok {
		a.opened = nil
		return nil, nil
	}
	if a.opened != nil && a.opened.UID == raw.UID && a.opened.ResourceVersion == raw.ResourceVersion {
		return a.opened, nil
	}
	o, err := c.applications.Unpack(raw)
	if a.opened = o; err != nil {
		a.opened = nil // so that the next turn reports it again
	}
	return o, err
}

// letNextStart frees an Application's place at the start limiter and enqueues the Applications that
// enter instead.
func (c *reconciler) letNextStart(k types.NamespacedName) {
	for _, next := range c.starts.Leave(k, c.cfg.Writer.Latency()) {
		c.loop.Wake(next)
	}
}

// forget drops the in-memory state of an Application.
func (c *reconciler) forget(k types.NamespacedName) {
	c.loop.Drop(k)
	c.idle.wake(k)
	c.watches.Release(k, true)
}

func (c *reconciler) now() time.Time { return c.cfg.Clock.Now() }
