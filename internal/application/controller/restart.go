package controller

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/steps"
)

// workflow returns the status of a run, or nil if the run has no status yet.
func (a *record) workflow(run string) *oam.WorkflowStatus {
	if a.report.Status == nil || a.report.Status.Workflow == nil || a.report.Status.Workflow.AppRevision != run {
		return nil
	}
	return a.report.Status.Workflow
}

// theirs returns the workflow's status if another client has changed it since this manager's last
// write, or nil.
func (a *record) theirs(o *oam.Application) *oam.WorkflowStatus {
	version, writing := a.report.Version, a.report.Writes > 0
	if writing || version == 0 || a.report.Status == nil || o.Status.Workflow == nil {
		return nil
	}
	seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil || seen <= version {
		return nil
	}
	theirs, ours := o.Status.Workflow, a.report.Status.Workflow
	if ours == nil || theirs.AppRevision != ours.AppRevision || theirs.Suspend == ours.Suspend && theirs.Terminated == ours.Terminated {
		return nil
	}
	// Each change counts once: later versions are compared with this one.
	a.report.Version = seen
	return theirs
}

// cleared reports whether another client has removed the workflow's status of the present revision.
// This manager always writes status.workflow together with LatestRevision. If a client sets LatestRevision
// alone, to return to an earlier revision, no restart is needed: that revision is deployed anyway.
func cleared(o *oam.Application, last *records.Stored) bool {
	r := o.Status.LatestRevision
	return o.Status.Workflow == nil && o.Status.ObservedGeneration > 0 && r != nil && r.Name == last.Name && r.RevisionHash == last.Hash
}

// restart reports whether to deploy the present revision again now, because of a restart command,
// because the workflow's status was removed, or because of the restart annotation, which may ask for
// it once, at a time, or periodically.
func (c *reconciler) restart(a *record, o *oam.Application) bool {
	last := a.Tracker.Latest()
	if last == nil {
		return false
	}
	if verb, step, ok := steps.CommandOf(o.Annotations[oam.WorkflowCommandAnnotation], a.Tracker.Command()); ok && verb == "restart" && step == "" {
		a.Tracker.SetCommand(o.Annotations[oam.WorkflowCommandAnnotation])
		return true
	}
	if was := a.cleared; cleared(o, last) {
		if a.cleared = true; !was {
			return true
		}
	} else {
		a.cleared = false
	}
	value := o.Annotations[oam.RestartWorkflowAnnotation]
	if value == "" {
		a.restarted = ""
		return false
	}
	if value == a.restarted {
		return false // under way; the annotation is being removed
	}
	now := c.now()
	at, once := now, true
	if d, err := time.ParseDuration(value); err == nil && d > 0 {
		status := a.workflow(a.Tracker.Run(last.Name, last.Hash))
		if status == nil || !status.Finished || status.EndTime.IsZero() {
			return false
		}
		at, once = status.EndTime.Add(d), false
	} else if t, err := time.Parse(time.RFC3339, value); err == nil {
		at = t
	} else if value != "true" {
		return false
	}
	a.report.RestartAt = metav1.NewTime(at).Rfc3339Copy()
	if now.Before(at) {
		a.WakeAfter(at.Sub(now))
		return false
	}
	if once {
		a.restarted = value
		c.dropRestart(a, o)
	}
	return true
}

// restartWrite is the name of the write of a restart annotation among an Application's writes.
const restartWrite = "restart"

// dropRestart removes a restart annotation that has been obeyed.
func (c *reconciler) dropRestart(a *record, o *oam.Application) {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{oam.RestartWorkflowAnnotation: nil}}})
	if err != nil || !a.Writes.Start(restartWrite) {
		return
	}
	c.cfg.Writer.Patch(apiwriter.Meta{Owner: a.Name, Reason: "application-restart"}, o, types.MergePatchType, data, func(_ apiwriter.Object, err error) {
		if err != nil {
			c.log.Warn("the annotation of a restart stays", "application", a.Key, "error", err)
		}
		a.Post(func() { a.Writes.End(restartWrite, nil) })
	})
}

// runAgain starts another run of the present revision at now, with the current definitions.
func (a *record) runAgain(now time.Time) {
	last := a.Tracker.Latest()
	f := &records.Flow{Restarts: 1, Command: a.Tracker.Command()}
	if old := a.Tracker.Flow; old != nil && a.Tracker.Run(last.Name, last.Hash) == old.Run {
		f.Restarts = old.Restarts + 1
	}
	f.Run = fmt.Sprintf("%s:%s#%d", last.Name, last.Hash, f.Restarts)
	a.Tracker.Flow = f
	a.ForgetErrors()
	a.Plan, a.planning.inputs, a.run, a.planning.again, a.planning.asking = nil, "", nil, true, ""
	a.Since = now
}
