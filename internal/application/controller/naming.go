package controller

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// recordNew names new objects in the tracker, and reports whether the tracker already names all
// objects of the plan. If it returns false, the tracker's answer brings the Application back.
func (c *Controller) recordNew(a *record, o *oam.Application) bool {
	if a.writes.inFlight(trackerWrite) {
		return false
	}
	resources := a.tracker.resources
	missing := false
	for i := range a.plan.Resources {
		if r := &a.plan.Resources[i]; !r.ReadOnly && !a.tracker.has(r.Ref) {
			missing = true
			resources = append(resources[:len(resources):len(resources)], managed(r))
		}
	}
	if !missing && a.tracker.object != nil {
		return true
	}
	a.tracker.resources = resources
	// A new object has no earlier applied state: three-way merges start from what is applied now.
	if a.tracker.Applied == nil {
		a.tracker.Applied = map[string]json.RawMessage{}
	}
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		if _, known := a.tracker.Applied[refKey(r.Ref)]; !known && !isSecret(r.GVK) && !r.ReadOnly {
			a.tracker.Applied[refKey(r.Ref)] = r.JSON
		}
	}
	c.writeTracker(a, o.UID, o.Generation)
	return false
}

// writeTracker creates the tracker or replaces its spec.
func (c *Controller) writeTracker(a *record, uid types.UID, generation int64) {
	c.keeper.write(a.owner, &a.tracker, &a.writes, uid, generation)
}

// load reads the Application's tracker, once. It returns false while that is not possible.
func (c *Controller) load(a *record) (bool, error) {
	loaded, err := c.keeper.load(a.owner, &a.tracker, c.deleted(a.key))
	switch a.tracker.takeNews() {
	case trackerReplaced:
		a.planning.inputs, a.plan = "", nil
	case trackerDeleted:
		a.planning.inputs, a.plan, a.run, a.report.status = "", nil, nil, nil
	}
	return loaded, err
}

// noRecord reports in an Application's status that its record cannot be read. The Application's
// objects are then unknown, so nothing is created, changed or deleted for it until the tracker
// changes. An Application that is being deleted is released.
func (c *Controller) noRecord(a *record, err error) {
	c.log.Error("an application's record cannot be read", "application", a.key, "error", err)
	o, _ := c.open(a)
	if o == nil {
		return
	}
	err = fmt.Errorf("its record, the ResourceTracker %s, cannot be read: %w. What it has deployed stays as it is until an administrator restores the record",
		trackerName(a.key.Namespace, a.key.Name), err)
	if o.DeletionTimestamp != nil {
		c.releaseUnreadable(a, o)
		return
	}
	a.noPlan(err)
	c.reporter.report(a.state, &a.report, o, progress{})
}
