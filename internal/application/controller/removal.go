package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/records"
)

// finalizerWrite is the name of the write of the finalizers among an Application's writes.
const finalizerWrite = "finalizer"

// finalizersInterval is how long the finalizers are not written again after another client has
// changed them. By then the watch has shown the change.
const finalizersInterval = 100 * time.Millisecond

// remove deletes or releases an Application's objects, then its tracker, then its finalizers.
func (c *reconciler) remove(a *record, o *oam.Application) {
	var spec *oam.ApplicationSpec
	if o != nil {
		spec = &o.Spec
	} else if last := a.Tracker.Latest(); last != nil {
		spec = last.Spec
	}
	remaining, why, failed := c.remover.RemoveAll(a.State, spec, o != nil && slices.Contains(o.Finalizers, oam.OrphanFinalizer))
	if failed {
		a.removal.Failed(c.now())
		a.WakeAfter(a.removal.Left(c.now()))
	}
	if remaining > 0 || a.Writes.InFlight(records.TrackerWrite) {
		if o != nil {
			c.reporter.ReportDeleting(a.State, &a.report, o, remaining, why)
		}
		return
	}
	if c.keeper.DeleteOthers(a.Owner, &a.Tracker, &a.Writes) {
		return // the watch enqueues the Application when they are gone
	}
	if a.Tracker.Object != nil {
		c.keeper.Delete(a.Owner, &a.Tracker, &a.Writes)
		return
	}
	if o == nil {
		c.forget(a.Key)
		return
	}
	c.removeFinalizers(a, o)
}

// addFinalizer adds this manager's finalizer if admission has not.
func (c *reconciler) addFinalizer(a *record, o *oam.Application) {
	if slices.Contains(o.Finalizers, oam.ResourceTrackerFinalizer) || c.now().Before(a.finalizersAt) || !a.Writes.Start(finalizerWrite) {
		return
	}
	c.patchFinalizers(a, o, append(slices.Clone(o.Finalizers), oam.ResourceTrackerFinalizer), func(err error) {
		if a.Writes.End(finalizerWrite, nil); err != nil {
			// The Application was changed or deleted meanwhile, or the patch was refused. The next
			// turn tries again; until then there is no finalizer.
			c.log.Debug("no finalizer yet", "application", a.Key, "error", err)
			a.finalizersAt = c.now().Add(finalizersInterval)
		}
	})
}

// finalizersPatch returns a JSON patch that replaces the finalizers. The patch fails if they have
// changed meanwhile. Other changes, such as this manager's own status writes, do not matter.
func finalizersPatch(o *oam.Application, to []string) ([]byte, error) {
	const path = "/metadata/finalizers"
	from := o.Finalizers
	if len(from) == 0 {
		from = nil // null in JSON, which a test takes for a field that does not exist
	}
	return json.Marshal([]apiwriter.PatchOp{{Op: "test", Path: path, Value: from}, {Op: "add", Path: path, Value: to}})
}

// patchFinalizers replaces the finalizers of an Application. The caller has started the write; done
// gets its outcome in a later turn.
func (c *reconciler) patchFinalizers(a *record, o *oam.Application, to []string, done func(error)) {
	data, err := finalizersPatch(o, to)
	if err != nil {
		done(err) // cannot happen: lists of strings
		return
	}
	c.cfg.Writer.Patch(apiwriter.Meta{Owner: a.Name, Reason: "application-finalizer"}, o, types.JSONPatchType, data, func(_ apiwriter.Object, err error) {
		a.Post(func() { done(err) })
	})
}

// removeFinalizers removes this manager's finalizers, so that the API server can delete the
// Application.
func (c *reconciler) removeFinalizers(a *record, o *oam.Application) {
	kept := slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool {
		return f == oam.ResourceTrackerFinalizer || f == oam.OrphanFinalizer
	})
	if len(kept) == len(o.Finalizers) || a.released == o.UID {
		return
	}
	if wait := a.finalizersAt.Sub(c.now()); wait > 0 {
		a.WakeAfter(wait)
		return
	}
	if !a.Writes.Start(finalizerWrite) {
		return
	}
	c.patchFinalizers(a, o, kept, func(err error) {
		switch {
		case apierrors.IsConflict(err) || apierrors.IsInvalid(err):
			// Another client was faster: look again when the watch has shown the new version.
			a.finalizersAt, err = c.now().Add(finalizersInterval), nil
		case err == nil || apierrors.IsNotFound(err):
			a.released, err = o.UID, nil
		}
		if a.Writes.End(finalizerWrite, err); err != nil {
			c.keeper.RetryLater(a.Owner, &a.Tracker, err)
		}
	})
}

// releaseUnreadable removes the finalizers of a deleted Application whose tracker cannot be read,
// and writes an event that says which objects stay.
func (c *reconciler) releaseUnreadable(a *record, o *oam.Application) {
	tracker := recordName(c.trackers, a)
	if !slices.Contains(o.Finalizers, oam.ResourceTrackerFinalizer) && !slices.Contains(o.Finalizers, oam.OrphanFinalizer) {
		return
	}
	c.log.Warn("an application is let go whose record cannot be read: what it has made stays", "application", a.Key, "tracker", tracker)
	c.cfg.Writer.Event(o, corev1.EventTypeWarning, "RecordUnreadable",
		fmt.Sprintf("the application is deleted and what it has made stays, for ResourceTracker %s, which lists it, cannot be read", tracker))
	c.removeFinalizers(a, o)
}
