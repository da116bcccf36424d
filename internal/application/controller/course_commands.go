package controller

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/flow"
)

// obey carries out users' commands to a workflow: the annotation that the lockstep command line
// writes, or a changed status, as other tools write it. It reports whether there is something to
// record.
func (c *Controller) obey(a *app, o *oam.Application, w *course) (changed bool) {
	f := a.record.Flow
	if verb, step, ok := commandOf(o, f.Command); ok {
		f.Command = o.Annotations[oam.WorkflowCommandAnnotation]
		c.command(f, w, verb, step)
		return true
	}
	theirs := a.theirs(o)
	switch {
	case theirs == nil || w.status.Finished:
		return false
	case theirs.Terminated && !w.status.Terminated:
		c.command(f, w, "terminate", "")
	case theirs.Suspend && !w.status.Suspend:
		c.command(f, w, "suspend", "")
	case !theirs.Suspend && w.status.Suspend:
		c.command(f, w, "resume", "")
	default:
		return false
	}
	return true
}

// commandOf reads the command annotation: VERB or VERB/STEP, followed by @ and a mark that tells
// repeated commands apart.
func commandOf(o *oam.Application, last string) (verb, step string, ok bool) {
	value := o.Annotations[oam.WorkflowCommandAnnotation]
	if value == "" || value == last {
		return "", "", false
	}
	verb, _, _ = strings.Cut(value, "@")
	verb, step, _ = strings.Cut(verb, "/")
	return verb, step, true
}

func (c *Controller) command(f *flowRecord, w *course, verb, step string) {
	if w.status.Finished {
		return
	}
	switch verb {
	case "suspend":
		f.Held = true
	case "resume":
		f.Held = false
		for _, name := range flow.SuspendingSteps(w.status) {
			if step == "" || step == name {
				if f.Resumed == nil {
					f.Resumed = map[string]bool{}
				}
				f.Resumed[name] = true
			}
		}
	case "terminate":
		f.Held = false
		w.status = flow.Terminate(w.status, c.cfg.Now())
	}
}

// theirs returns the workflow's status if another client has changed it since this manager's last
// write, or nil.
func (a *app) theirs(o *oam.Application) *oam.WorkflowStatus {
	a.mu.Lock()
	version, writing := a.statusVersion, a.statusWrites > 0
	a.mu.Unlock()
	if writing || version == 0 || a.status == nil || o.Status.Workflow == nil {
		return nil
	}
	seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil || seen <= version {
		return nil
	}
	theirs, ours := o.Status.Workflow, a.status.Workflow
	if ours == nil || theirs.AppRevision != ours.AppRevision || theirs.Suspend == ours.Suspend && theirs.Terminated == ours.Terminated {
		return nil
	}
	// Each change counts once: later versions are compared with this one.
	a.mu.Lock()
	a.statusVersion = seen
	a.mu.Unlock()
	return theirs
}

// restart decides whether to deploy the present revision again now, because of the restart
// annotation (once, at a time, or periodically) or of a restart command. It returns true if so.
func (c *Controller) restart(a *app, o *oam.Application) bool {
	last := a.record.latest()
	if last == nil {
		return false
	}
	if verb, _, ok := commandOf(o, a.record.command()); ok && verb == "restart" {
		a.setCommand(o.Annotations[oam.WorkflowCommandAnnotation])
		return true
	}
	value := o.Annotations[oam.RestartWorkflowAnnotation]
	if value == "" {
		a.restarted = ""
		return false
	}
	if value == a.restarted {
		return false // under way; the annotation is being removed
	}
	now := c.cfg.Now()
	at, once := now, true
	if d, err := time.ParseDuration(value); err == nil && d > 0 {
		status := a.workflow(a.record.run(last.Name, last.Hash))
		if status == nil || !status.Finished || status.EndTime.IsZero() {
			return false
		}
		at, once = status.EndTime.Add(d), false
	} else if t, err := time.Parse(time.RFC3339, value); err == nil {
		at = t
	} else if value != "true" {
		return false
	}
	a.restartAt = metav1.NewTime(at).Rfc3339Copy()
	if now.Before(at) {
		c.queue.AddAfter(a.key, at.Sub(now))
		return false
	}
	if once {
		a.restarted = value
		c.dropRestart(a, o)
	}
	return true
}

// dropRestart removes a restart annotation that has been obeyed.
func (c *Controller) dropRestart(a *app, o *oam.Application) {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{oam.RestartWorkflowAnnotation: nil}}})
	if err != nil || !a.starts("restart") {
		return
	}
	c.cfg.Writer.Patch(apiwriter.Meta{Owner: a.owner, Reason: "application-restart"}, o, types.MergePatchType, data, func(_ apiwriter.Object, err error) {
		if err != nil {
			c.log.Warn("the annotation of a restart stays", "application", a.key, "error", err)
		}
		a.ended("restart", nil)
	})
}

func (r *record) command() string {
	if r.Flow == nil {
		return ""
	}
	return r.Flow.Command
}

func (a *app) setCommand(value string) {
	if a.record.Flow == nil {
		a.record.Flow = &flowRecord{}
	}
	a.record.Flow.Command = value
}

// run returns the name of the present run of a revision's workflow: the revision, followed by the
// number of its restarts if there were any.
func (r *record) run(revision, hash string) string {
	base := revision + ":" + hash
	if r.Flow != nil && strings.HasPrefix(r.Flow.Run, base+"#") {
		return r.Flow.Run
	}
	return base
}

// runAgain starts another run of the present revision, with the current definitions.
func (c *Controller) runAgain(a *app) {
	last := a.record.latest()
	f := &flowRecord{Restarts: 1, Command: a.record.command()}
	if old := a.record.Flow; old != nil && a.record.run(last.Name, last.Hash) == old.Run {
		f.Restarts = old.Restarts + 1
	}
	f.Run = fmt.Sprintf("%s:%s#%d", last.Name, last.Hash, f.Restarts)
	a.record.Flow = f
	a.plan, a.planned, a.course, a.again, a.asking = nil, "", nil, true, ""
	a.since = c.cfg.Now()
}
