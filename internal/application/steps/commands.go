package steps

import (
	"maps"
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
		// Clients mark the steps that they suspend: all that run, or one.
		for _, step := range marked(w.status, theirs, oam.StepRunning, oam.StepSuspending) {
			c.command(f, w, "suspend", step)
		}
	case !theirs.Suspend && w.status.Suspend:
		for _, step := range marked(w.status, theirs, oam.StepSuspending, oam.StepRunning) {
			c.command(f, w, "resume", step)
		}
	default:
		return false
	}
	return true
}

// marked returns the steps that another client has moved from a phase to another one. It returns "",
// which stands for the whole workflow, if these are all steps in the phase, or none.
func marked(ours, theirs *oam.WorkflowStatus, from, to oam.WorkflowStepPhase) []string {
	var out []string
	all := true
	for st := range flow.StepsOf(ours) {
		if st.Phase != from {
			continue
		}
		if other := stepOf(theirs, st.Name); other != nil && other.Phase == to {
			out = append(out, st.Name)
		} else {
			all = false
		}
	}
	if all || len(out) == 0 {
		return []string{""}
	}
	return out
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
		if step == "" {
			f.Suspended = true
			return
		}
		if f.Paused == nil {
			f.Paused = map[string]bool{}
		}
		f.Paused[step] = true
	case "resume":
		f.Suspended = false
		for _, name := range flow.SuspendingSteps(w.status) {
			// What a user has suspended is no consent that a step waits for.
			if (step == "" || step == name) && !f.Paused[name] {
				if f.Resumed == nil {
					f.Resumed = map[string]bool{}
				}
				f.Resumed[name] = true
			}
		}
		maps.DeleteFunc(f.Paused, func(name string, _ bool) bool { return step == "" || step == name })
	case "terminate":
		f.Suspended, f.Paused = false, nil
		w.status = flow.Terminate(w.status, c.Now())
	}
}
