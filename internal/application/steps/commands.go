package steps

import (
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/records"
)

// Command is a user's command to a workflow: the annotation that the lockstep command line writes,
// or a changed status, as other tools write it.
type Command struct {
	// Annotation is the value of the annotation.
	Annotation string
	// Theirs returns the workflow's status if another client has changed it, or nil.
	Theirs func() *oam.WorkflowStatus
}

// obey carries out users' commands to a workflow. It reports whether the tracker must be stored.
func (c *Runner) obey(a *deploy.State, w *Run, order Command) (changed bool) {
	f := a.Tracker.Flow
	if verb, step, ok := CommandOf(order.Annotation, f.Command); ok {
		f.Command = order.Annotation
		c.command(f, w, verb, step)
		return true
	}
	theirs := order.Theirs()
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

// CommandOf reads the command annotation: VERB or VERB/STEP, followed by @ and a mark that
// distinguishes repeated commands. ok is false if there is no command or if value is the last one
// that was carried out.
func CommandOf(value, last string) (verb, step string, ok bool) {
	if value == "" || value == last {
		return "", "", false
	}
	verb, _, _ = strings.Cut(value, "@")
	verb, step, _ = strings.Cut(verb, "/")
	return verb, step, true
}

func (c *Runner) command(f *records.Flow, w *Run, verb, step string) {
	if w.status.Finished {
		return
	}
	switch verb {
	case "suspend":
		f.Suspended = true
	case "resume":
		f.Suspended = false
		for _, name := range flow.SuspendingSteps(w.status) {
			if step == "" || step == name {
				if f.Resumed == nil {
					f.Resumed = map[string]bool{}
				}
				f.Resumed[name] = true
			}
		}
	case "terminate":
		f.Suspended = false
		w.status = flow.Terminate(w.status, c.Now())
	}
}
