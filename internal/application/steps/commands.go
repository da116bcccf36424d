package steps

import (
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
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
		c.command(a, w, verb, step)
		return true
	}
	theirs := order.Theirs()
	switch {
	case theirs == nil:
		return false
	case w.status.Finished:
		return !theirs.Finished && restartDropped(a, w, theirs)
	case theirs.Terminated && !w.status.Terminated:
		c.command(a, w, "terminate", "")
	case theirs.Suspend && !w.status.Suspend:
		// Clients mark the steps that they suspend: all that run, or one.
		for _, step := range marked(w.status, theirs, oam.StepRunning, oam.StepSuspending) {
			c.command(a, w, "suspend", step)
		}
	case !theirs.Suspend && w.status.Suspend:
		for _, step := range marked(w.status, theirs, oam.StepSuspending, oam.StepRunning) {
			c.command(a, w, "resume", step)
		}
	default:
		return false
	}
	return true
}

// marked returns the steps that another client has moved from a phase to another one. It returns
// "", which stands for the whole workflow, if these are all steps in the phase, or none.
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

func (c *Runner) command(a *deploy.State, w *Run, verb, step string) {
	if verb == "restart" {
		restartFrom(a, w, step)
		return
	}
	if w.status.Finished {
		return
	}
	f := a.Tracker.Flow
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
		f.Suspended, f.Paused, f.Terminated = false, nil, true
		w.status = flow.Terminate(w.status, c.Now())
	}
}

// obeyAgain carries out the commands of earlier turns whose effect is not in the status, because the
// manager ended before it was written.
func obeyAgain(a *deploy.State, w *Run, now time.Time) {
	f := a.Tracker.Flow
	for step, began := range f.Again {
		if st := stepOf(w.status, step); st != nil && st.Phase == oam.StepFailed && st.FirstExecuteTime.Equal(&began) {
			restartFrom(a, w, step)
		}
	}
	if f.Terminated && !w.status.Terminated {
		w.status = flow.Terminate(w.status, now)
	}
}

// restartDropped restarts a workflow that has ended at the failed steps that another client has
// removed from its status. It reports whether there are any.
func restartDropped(a *deploy.State, w *Run, theirs *oam.WorkflowStatus) (found bool) {
	var dropped []string
	for st := range flow.StepsOf(w.status) {
		if st.Phase == oam.StepFailed && stepOf(theirs, st.Name) == nil {
			dropped = append(dropped, st.Name)
		}
	}
	for _, step := range dropped {
		found = restartFrom(a, w, step) || found
	}
	return found
}

// restartFrom has a workflow continue with a failed step, and forgets what that step and those after
// it have given. It reports whether the step has failed. The step's objects stay until it applies them
// again or the workflow ends without them.
func restartFrom(a *deploy.State, w *Run, step string) bool {
	status, again := flow.Restart(w.program, w.status, step)
	if status == nil {
		return false
	}
	f := a.Tracker.Flow
	if f.Again == nil {
		f.Again = map[string]metav1.Time{}
	}
	f.Again[step], f.Terminated = stepOf(w.status, step).FirstExecuteTime, false
	for _, name := range again {
		for _, o := range w.program.Step(name).Outputs {
			delete(f.Outputs, o.Name)
		}
		delete(f.Resumed, name)
		delete(f.Paused, name)
		delete(w.tries, name)
		delete(w.answers, name)
		of := func(key string) bool { return key == name || strings.HasPrefix(key, name+"/") }
		maps.DeleteFunc(f.Units, func(key string, _ plan.DeployUnit) bool { return of(key) })
		maps.DeleteFunc(w.checks, func(key string, _ *measured) bool { return of(key) })
		for _, p := range w.parts {
			if of(p.key) {
				p.plan, p.err, p.inputs = nil, nil, ""
			}
		}
	}
	w.status, f.Seen, f.Suspended, w.stale = status, nil, false, true
	a.ForgetErrors()
	return true
}
