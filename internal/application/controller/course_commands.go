package controller

import (
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
)

// command is what users want from a workflow: the annotation that the lockstep command line writes,
// or a changed status, as other tools write it.
type command struct {
	annotation string
	// theirs returns the workflow's status if another client has changed it, or nil.
	theirs func() *oam.WorkflowStatus
}

// obey carries out users' commands to a workflow. It reports whether there is something to record.
func (c *stepRunner) obey(a *state, w *workflowRun, order command) (changed bool) {
	f := a.tracker.Flow
	if verb, step, ok := commandOf(order.annotation, f.Command); ok {
		f.Command = order.annotation
		c.command(f, w, verb, step)
		return true
	}
	theirs := order.theirs()
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
func commandOf(value, last string) (verb, step string, ok bool) {
	if value == "" || value == last {
		return "", "", false
	}
	verb, _, _ = strings.Cut(value, "@")
	verb, step, _ = strings.Cut(verb, "/")
	return verb, step, true
}

func (c *stepRunner) command(f *flowRecord, w *workflowRun, verb, step string) {
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
		w.status = flow.Terminate(w.status, c.now())
	}
}
