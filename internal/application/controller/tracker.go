package controller

import (
	"fmt"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/records"
)

// nameNewObjects names new objects in the tracker. It reports whether the stored tracker already
// names all objects of the plan. If it returns false, the answer to the tracker's write, or the end
// of a backoff, enqueues the Application.
func (c *reconciler) nameNewObjects(a *record, o *oam.Application) bool {
	if a.Writes.InFlight(records.TrackerWrite) {
		return false
	}
	if a.Tracker.NameObjects(a.Plan.Resources) {
		return true
	}
	c.keeper.Write(a.Owner, &a.Tracker, &a.Writes, records.Written{UID: o.UID, Generation: o.Generation})
	return false
}

// outdated reports whether the stored tracker is of an earlier generation of the Application. Clients
// then regard its objects as left over from an earlier state. A spec that was changed and changed back has
// a new generation, but no new revision.
func outdated(a *record, o *oam.Application) bool {
	return a.Tracker.Object != nil && !a.Writes.InFlight(records.TrackerWrite) &&
		o.Annotations[oam.PublishVersionAnnotation] == "" && a.Tracker.Object.Spec.ApplicationGeneration != o.Generation
}

// load reads the Application's tracker, once. It returns false while that is not possible.
func (c *reconciler) load(a *record) (bool, error) {
	raw, exists := c.applications.Get(a.Key.Namespace, a.Key.Name)
	loaded, err := c.keeper.Load(a.Owner, &a.Tracker, exists && raw.DeletionTimestamp != nil)
	switch a.Tracker.TakeChange() {
	case records.Replaced:
		a.planning.inputs, a.Plan = "", nil
	case records.Deleted:
		a.planning.inputs, a.Plan, a.run = "", nil, nil
		a.report.Forget()
	}
	return loaded, err
}

// recordName returns the name of the tracker that has the Application's record, for messages.
func recordName(trackers *records.PackedCache[oam.ResourceTracker], a *record) string {
	if raw, ok := records.RecordOf(trackers, a.Key); ok {
		return raw.Name
	}
	return "of " + a.Key.String()
}

// reportUnreadable reports in an Application's status that its tracker cannot be read. The
// Application's objects are then unknown, so nothing is created, changed or deleted for it until
// the tracker changes. An Application that is being deleted is released.
func (c *reconciler) reportUnreadable(a *record, err error) {
	c.log.Error("an application's record cannot be read", "application", a.Key, "error", err)
	o, _ := c.open(a)
	if o == nil {
		return
	}
	err = fmt.Errorf("its record, the ResourceTracker %s, cannot be read: %w. What it has deployed stays as it is until an administrator restores the record",
		recordName(c.trackers, a), err)
	if o.DeletionTimestamp != nil {
		c.releaseUnreadable(a, o)
		return
	}
	a.noPlan(err)
	c.reporter.Report(a.State, &a.report, o, deploy.Progress{})
}
